{{- define "fairlead.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "fairlead.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "fairlead.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "fairlead.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "fairlead.selectorLabels" -}}
app.kubernetes.io/name: {{ include "fairlead.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "fairlead.labels" -}}
{{ include "fairlead.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: fairlead
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "fairlead.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "fairlead.fullname" .) -}}
{{- end -}}

{{- define "fairlead.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- /* The value at a path with dots as text with "=" before it; nothing if it is null. A list is one with commas. */ -}}
{{- define "fairlead.value" -}}
{{- $at := .values -}}
{{- range splitList "." .path -}}
{{- $at = index (kindIs "map" $at | ternary $at dict) . -}}
{{- end -}}
{{- if kindIs "slice" $at -}}
={{ join "," $at }}
{{- else if kindIs "float64" $at -}}
={{ int64 $at }}
{{- else if not (kindIs "invalid" $at) -}}
={{ $at }}
{{- end -}}
{{- end -}}

{{- /* What a row of options.yaml sets its option to, likewise; nothing for the agent's default. */ -}}
{{- define "fairlead.option" -}}
{{- $value := include "fairlead.value" (dict "values" .values "path" .row.value) -}}
{{- if and .row.while (ne (include "fairlead.value" (dict "values" .values "path" .row.while)) (print "=" .row.is)) -}}
{{- $value = .row.otherwise | empty | ternary "" (print "=" .row.otherwise) -}}
{{- else if and .row.words $value -}}
{{- $value = print "=" (index .row.words (trimPrefix "=" $value)) -}}
{{- end -}}
{{- $value -}}
{{- end -}}

{{- /* Not empty where nothing is wanted of an agent but that connections go past TCP. */ -}}
{{- define "fairlead.alone" -}}
{{- if eq (.Values.mode | default "full") "accelerate-only" -}}true{{- end -}}
{{- end -}}

{{- /* Whether policies are followed; empty if not. */ -}}
{{- define "fairlead.policies" -}}
{{- if and (eq (include "fairlead.podNetwork" .) "main") (ne (.Values.policies | default "enforce") "off") }}true{{ end }}
{{- end }}

{{- /* Whether the controller writes the pods of all nodes for agents; empty if not. */ -}}
{{- define "fairlead.slices" -}}
{{- if and (include "fairlead.policies" .) (eq (.Values.policyPods | default "watch") "slices") }}true{{ end }}
{{- end }}

{{- /* What is there once for the cluster is named so, with its service account and its Lease. */ -}}
{{- define "fairlead.controller" -}}
{{- include "fairlead.fullname" . | trunc 52 | trimSuffix "-" }}-controller
{{- end -}}

{{- /* Who gives pods their network, as podNetwork has it. */ -}}
{{- define "fairlead.podNetwork" -}}
{{- include "fairlead.alone" . | empty | ternary .Values.podNetwork "off" -}}
{{- end -}}

{{- /* Not empty where connections may go past TCP. */ -}}
{{- define "fairlead.sockmap" -}}
{{- if or .Values.sockmap.enabled (include "fairlead.alone" .) -}}true{{- end -}}
{{- end -}}

{{- define "fairlead.options" -}}
{{- $alone := include "fairlead.alone" . -}}
{{- range .Files.Get "options.yaml" | fromYamlArray -}}
{{- if and .value (or .alone (not $alone)) -}}
{{- $value := include "fairlead.option" (dict "values" $.Values "row" .) -}}
{{- if and $value (not (and $alone .not (eq $value (print "=" .not)))) -}}
{{ .option }}: {{ trimPrefix "=" $value | toJson }}
{{ end -}}
{{- end -}}
{{- end -}}
{{- if eq (include "fairlead.podNetwork" .) "main" -}}
cni-conf-dir: /host/etc/cni/net.d
{{ end -}}
{{- if .Values.ipMasqAgent.enabled -}}
masquerade-config: /etc/fairlead-masquerade/config
{{ end -}}
{{- end -}}

{{- /* Host and port of the API server: as it is told, or as kubeadm notes it for everybody. */ -}}
{{- define "fairlead.server" -}}
{{- if ne (.Values.k8sServiceHost | default "auto") "auto" -}}
host: {{ .Values.k8sServiceHost | trimPrefix "[" | trimSuffix "]" | toJson }}
port: {{ include "fairlead.value" (dict "values" .Values "path" "k8sServicePort") | trimPrefix "=" | quote }}
{{- else -}}
{{- $known := lookup "v1" "ConfigMap" "kube-public" "cluster-info" -}}
{{- if $known -}}
{{- $url := urlParse (index (get (index $known.data "kubeconfig" | fromYaml) "clusters") 0).cluster.server -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" -}}
host: {{ $url.host | trimSuffix (printf ":%s" $port) | trimPrefix "[" | trimSuffix "]" | quote }}
port: {{ $port | default "443" | quote }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* By what a probe reaches the agent. */ -}}
{{- define "fairlead.probe" -}}
{{- $port := regexFind "[0-9]+$" .address -}}
{host: {{ trimSuffix (print ":" $port) .address | trimPrefix "[" | trimSuffix "]" | quote }}, port: {{ $port }}, path: {{ .path }}}
{{- end -}}

{{- /* Memory that an agent and its maps need, in Mi: 128 for the process, the maps as a node with 16 processors makes them, and
576 bytes for each flow when the room for them is used up; with mode accelerate-only there are none of these maps. Room is made in powers of two.
Without bpf.ctMax a node allows 32,768 flows for each processor, and at least 131,072. This is for as many as four processors allow: what larger
nodes allow would be held back on small ones for nothing. What connections take that may go past TCP comes on top. A test holds this to what the maps take. */ -}}
{{- define "fairlead.memory" -}}
{{- $past := ternary 64 0 (eq (include "fairlead.sockmap" .) "true") -}}
{{- if include "fairlead.alone" . -}}{{ add 128 $past }}Mi{{- else -}}
{{- $flows := 65536 -}}
{{- $most := .Values.bpf.ctMax | default 131072 | int64 -}}
{{- range until 10 -}}{{- if lt (int64 $flows) $most -}}{{- $flows = mul $flows 2 -}}{{- end -}}{{- end -}}
{{- add 128 47 $past (div (mul $flows 576) 1048576) -}}Mi
{{- end -}}
{{- end -}}

{{- define "fairlead.resources" -}}
{{- $given := .Values.resources | default dict -}}
{{- $requests := deepCopy ($given.requests | default dict) -}}
{{- if not $requests.memory -}}{{- $_ := set $requests "memory" (include "fairlead.memory" .) -}}{{- end -}}
{{- toYaml (merge (dict "requests" $requests) (omit $given "requests" (empty $given.limits | ternary "limits" ""))) -}}
{{- end -}}

# What the unit that comes with the packages of kubeadm has systemd do: start the kubelet, and again when it has ended, as it
# does until kubeadm has configured it.
while :; do
	KUBELET_KUBEADM_ARGS=
	if [ -e /var/lib/kubelet/kubeadm-flags.env ]; then
		. /var/lib/kubelet/kubeadm-flags.env
	fi
	kubelet --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf \
		--config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS
	sleep 1
done

package observe

import (
	"fmt"

	"fairlead.io/fairlead/pkg/phrase"
)

// QuotaUse is how much of a quota of namespaces the Services of the one want that want most of it.
type QuotaUse struct {
	Quota     string `json:"quota"` // as in --namespace-quota
	Namespace string `json:"namespace"`
	Wanted    int    `json:"wanted"` // more than the limit: the youngest of these Services are not served
	Limit     int    `json:"limit"`
}

// quotaText names the quota of which least is left.
func quotaText(uses []QuotaUse) string {
	text, most := "", -1.0
	for _, u := range uses {
		if share := float64(u.Wanted) / float64(u.Limit); share > most {
			most = share
			text = fmt.Sprintf("namespace %s wants %d of %d %s", phrase.Printable(u.Namespace), u.Wanted, u.Limit, u.Quota)
		}
	}
	return text
}

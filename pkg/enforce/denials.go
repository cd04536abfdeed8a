package enforce

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
)

// forgetDenials removes the counts of rules that are gone, once no program judges by them: their numbers
// will be those of other rules. If all of the tables were written, no number means what it did before.
func (w *Writer) forgetDenials(change *policy.Change, whole bool) error {
	if whole {
		counts, err := all[bpf.MapsPolicyDenial, uint64](w.maps.PolicyDenials)
		if errors.Is(err, ebpf.ErrIterationAborted) { // a row was evicted meanwhile; the next rounds get what is left
			err = nil
		}
		for key := range counts {
			err = errors.Join(err, w.forgetDenial(key))
		}
		return err
	}
	var errs []error
	for number, rule := range change.Rules {
		if rule != (policy.Rule{}) || number < policy.FirstRule {
			continue
		}
		for direction := range uint32(model.Directions) {
			errs = append(errs, w.forgetDenial(bpf.MapsPolicyDenial{Rule: number, Direction: direction}))
		}
	}
	return errors.Join(errs...)
}

func (w *Writer) forgetDenial(key bpf.MapsPolicyDenial) error {
	if err := w.maps.PolicyDenials.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forget the denials of rule %d: %w", key.Rule, err)
	}
	return nil
}

package maps

import "errors"

// Tables are the maps that the reconciler writes, as Go sees them. The slices are the maps' memory: an element that
// programs read while it changes has to be stored atomically, and nothing may be touched after Close. Services and Names
// have the same length.
type Tables struct {
	Svcs     *SvcTable
	Ranges   *RangeTable
	Services []Service
	Slots    []Slot
	Backends []Backend
	Names    []NameText

	closers []func() error
}

// Tables maps the arrays, writable unless the maps were opened read-only. It borrows m's svcs; the caller closes it
// before m.
func (m *Maps) Tables() (*Tables, error) {
	t := &Tables{Svcs: NewSvcTable(m.Svcs), Ranges: NewRangeTable(m.SrcRanges)}
	services, err := MapArray[Service](m.Services, !m.readOnly)
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	t.closers = append(t.closers, services.Close)
	slots, err := MapArray[Slot](m.Slots, !m.readOnly)
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	t.closers = append(t.closers, slots.Close)
	backends, err := MapArray[Backend](m.Backends, !m.readOnly)
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	t.closers = append(t.closers, backends.Close)
	names, err := MapArray[NameText](m.Names, !m.readOnly)
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	t.closers = append(t.closers, names.Close)

	t.Services, t.Slots, t.Backends, t.Names = services.Rows(), slots.Rows(), backends.Rows(), names.Rows()
	n := m.Sizes().Services
	t.Services, t.Names = t.Services[:n], t.Names[:n]
	return t, nil
}

// Close unmaps the arrays. Closing twice is no error.
func (t *Tables) Close() error {
	var errs []error
	for _, closer := range t.closers {
		errs = append(errs, closer())
	}
	*t = Tables{}
	return errors.Join(errs...)
}

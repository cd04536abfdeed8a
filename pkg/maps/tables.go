package maps

import "errors"

// Tables gives access to the maps that the reconciler writes. The slices are the memory of the
// maps: an element that programs read while it changes must be stored atomically, and none may be
// used after Close. Services and Names have the same length.
type Tables struct {
	Svcs     *SvcTable
	Ranges   *RangeTable
	Services []Service
	Slots    []Slot
	Backends []Backend
	Names    []NameText

	closers []func() error
}

// Tables maps the arrays into memory, writable unless m was opened read-only. It uses m's svcs. The
// caller must close it before m.
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

// Close unmaps the arrays. It may be called twice.
func (t *Tables) Close() error {
	var errs []error
	for _, closer := range t.closers {
		errs = append(errs, closer())
	}
	*t = Tables{}
	return errors.Join(errs...)
}

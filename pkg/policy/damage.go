package policy

// Damage is a row of the maps that does not say what the tables say.
type Damage struct {
	Map, Where, Want, Have string
	Mended                 bool
}

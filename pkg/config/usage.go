package config

// UsageError is a mistake in the command line, the environment or the configuration.
type UsageError struct{ Err error }

// Error says what the mistake is.
func (e UsageError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e UsageError) Unwrap() error { return e.Err }

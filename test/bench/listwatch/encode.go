package listwatch

import (
	"encoding/binary"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// magic is the prefix of every object in the API's protobuf encoding.
const magic = "k8s\x00"

// Tags of the fields that are written here, as encoded: the field number, and the wire type for
// bytes with a length.
const (
	tagMeta  = 1<<3 | 2 // of a list
	tagItem  = 2<<3 | 2 // of a list
	tagRaw   = 2<<3 | 2 // of an envelope
	tagType  = 1<<3 | 2 // of an envelope, and of an event
	tagEvent = 2<<3 | 2 // an event's object
)

// marshaler is a message that encodes itself. All of the API's messages do.
type marshaler interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
}

// encoder writes objects. It reuses its memory for the next one.
type encoder struct {
	out     io.Writer
	scratch []byte
}

// appendHead appends the tag and length of a field with the given number of bytes.
func appendHead(to []byte, tag byte, size int) []byte {
	return binary.AppendUvarint(append(to, tag), uint64(size))
}

// fieldSize returns the size of a field including its tag and length.
func fieldSize(size int) int { return len(appendHead(make([]byte, 0, 16), 0, size)) + size }

// appendMessage appends a message of known size.
func appendMessage(to []byte, m marshaler, size int) ([]byte, error) {
	at := len(to)
	to = append(to, make([]byte, size)...)
	if n, err := m.MarshalToSizedBuffer(to[at:]); err != nil || n != size {
		return nil, fmt.Errorf("encode %T: %d of %d bytes: %w", m, n, size, err)
	}
	return to, nil
}

// head returns what precedes an object in its envelope.
func head(version, kind string, size int) ([]byte, error) {
	typed := runtime.TypeMeta{APIVersion: version, Kind: kind}
	to := appendHead([]byte(magic), tagType, typed.Size())
	to, err := appendMessage(to, &typed, typed.Size())
	return appendHead(to, tagRaw, size), err
}

// event writes a watch event. The object in it has its own envelope, and is in a field of a field.
func (e *encoder) event(what, version, kind string, o marshaler) error {
	size := o.Size()
	envelope, err := head(version, kind, size)
	if err != nil {
		return err
	}
	raw := fieldSize(len(envelope) + size)
	whole := fieldSize(len(what)) + fieldSize(raw)
	to := binary.BigEndian.AppendUint32(e.scratch[:0], uint32(whole))
	to = append(appendHead(to, tagType, len(what)), what...)
	to = appendHead(appendHead(to, tagEvent, raw), tagType, len(envelope)+size)
	to = append(to, envelope...)
	if to, err = appendMessage(to, o, size); err != nil {
		return err
	}
	e.scratch = to
	_, err = e.out.Write(to)
	return err
}

// list writes a list. It calls each twice, since the envelope's length precedes the first object,
// and all objects together may not fit in memory.
func (e *encoder) list(version, kind string, about metav1.ListMeta, each func(func(marshaler) error) error) error {
	whole := fieldSize(about.Size())
	if err := each(func(o marshaler) error {
		whole += fieldSize(o.Size())
		return nil
	}); err != nil {
		return err
	}
	to, err := head(version, kind+"List", whole)
	if err != nil {
		return err
	}
	if to, err = appendMessage(appendHead(to, tagMeta, about.Size()), &about, about.Size()); err != nil {
		return err
	}
	if _, err := e.out.Write(to); err != nil {
		return err
	}
	return each(func(o marshaler) error {
		size := o.Size()
		to, err := appendMessage(appendHead(e.scratch[:0], tagItem, size), o, size)
		if err != nil {
			return err
		}
		e.scratch = to
		_, err = e.out.Write(to)
		return err
	})
}

// one writes a single object, such as a status.
func (e *encoder) one(version, kind string, o marshaler) error {
	to, err := head(version, kind, o.Size())
	if err != nil {
		return err
	}
	if to, err = appendMessage(to, o, o.Size()); err != nil {
		return err
	}
	_, err = e.out.Write(to)
	return err
}

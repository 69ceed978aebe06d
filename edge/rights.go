package edge

import (
	"slices"
	"strings"
)

// A Scope is a part of what the server does that a token opens.
type Scope string

// The scopes.
const (
	// ScopeSchedule opens create, replace, move, cancel, fire, hold, resume, get and list of tasks,
	// also by group. At the Redis port it opens keys.
	ScopeSchedule Scope = "schedule"
	// ScopeReceive opens reserve, and settling of deliveries. At the Redis port it opens streams
	// and subscriptions to events of keys.
	ScopeReceive Scope = "receive"
	// ScopeRead opens everything that changes nothing, metrics and the dashboard included.
	ScopeRead Scope = "read"
	// ScopeAdmin opens everything.
	ScopeAdmin Scope = "admin"
)

// Scopes are all scopes there are.
var Scopes = []Scope{ScopeSchedule, ScopeReceive, ScopeRead, ScopeAdmin}

func scopeList() string {
	var names []string
	for _, s := range Scopes {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}

// Rights is a set of scopes.
type Rights uint8

// The rights, in the order of Scopes.
const (
	MaySchedule Rights = 1 << iota
	MayReceive
	MayRead
	MayAdmin

	AnyRight = MaySchedule | MayReceive | MayRead | MayAdmin
)

// RightsOf returns the set of scopes.
func RightsOf(scopes []Scope) (r Rights) {
	for _, s := range scopes {
		r |= 1 << slices.Index(Scopes, s)
	}
	return r
}

// Open reports whether a caller with these rights may use what needs one of the others. Admins may
// use everything, also what names no right.
func (r Rights) Open(needs Rights) bool { return r&(needs|MayAdmin) != 0 }

// List returns the scopes in r, without admin if there are others.
func (r Rights) List() (list []Scope) {
	for i, s := range Scopes {
		if r&(1<<i) != 0 && (s != ScopeAdmin || len(list) == 0) {
			list = append(list, s)
		}
	}
	return list
}

// String returns the scopes in r as a sentence names them.
func (r Rights) String() string {
	var names []string
	for _, s := range r.List() {
		names = append(names, string(s))
	}
	return strings.Join(names, " or ")
}

package access

import (
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// What each method asks of its caller: the options of the API, read once.

// A Method is what a method asks for.
type Method struct {
	Procedure string
	Scope     v1.Scope
	Roles     []v1.Role
	allowed   session.Roles
}

// Methods are all of the API, by their procedures.
type Methods map[string]*Method

// ReadMethods reads the options of all methods of package govnode.v1. One that does
// not say who may call it is an error, so that nothing is open by being forgotten.
func ReadMethods() (Methods, error) {
	all, missing := Methods{}, []string(nil)
	protoregistry.GlobalFiles.RangeFilesByPackage("govnode.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				x := &Method{Procedure: "/" + string(service.FullName()) + "/" + string(m.Name())}
				asks, _ := proto.GetExtension(m.Options(), v1.E_Access).(*v1.Access)
				x.Scope, x.Roles = asks.GetScope(), asks.GetRoles()
				x.allowed = RolesOf(x.Roles)
				if x.Scope == v1.Scope_SCOPE_UNSPECIFIED || x.needsRole() == (x.allowed == 0) {
					missing = append(missing, x.Procedure)
				}
				all[x.Procedure] = x
			}
		}
		return true
	})
	if len(missing) > 0 {
		return nil, fmt.Errorf("access: the API does not say who may call %s; give each method the option (govnode.v1.access) with a scope and, where it needs one, roles", strings.Join(missing, ", "))
	}
	return all, nil
}

func (m *Method) needsRole() bool {
	return m.Scope == v1.Scope_SCOPE_NAMESPACE || m.Scope == v1.Scope_SCOPE_CLUSTER || m.Scope == v1.Scope_SCOPE_TOKENS
}

// Admit refuses a caller who may not call the method. It reads nothing but the two.
func (all Methods) Admit(p *Principal, procedure string) error {
	if p == nil {
		return nil // nobody is asked
	}
	m := all[procedure]
	if m == nil {
		return Denied("%s is no method of this API that anybody may call", procedure)
	}
	cluster := p.Namespace == session.ClusterNamespace
	switch {
	case p.Joins() && p.Roles&m.allowed == 0:
		return Denied("%s is not for a token that lets a node join: it may be used by %s alone", procedure, all.of(joiner))
	case m.Scope == v1.Scope_SCOPE_SELF:
		return nil
	case m.Scope == v1.Scope_SCOPE_CLUSTER && !cluster:
		return Denied("%s is for operators of the cluster; it takes a token of the namespace %s", procedure, session.ClusterNamespace)
	case cluster && (m.Scope == v1.Scope_SCOPE_NAMESPACE || m.Scope == v1.Scope_SCOPE_ITEMS):
		return Denied("%s works inside a namespace, and this is a token of %s; use one of that namespace", procedure, session.ClusterNamespace)
	case m.needsRole() && p.Roles&m.allowed == 0:
		return Denied("%s is for %s; this token has the roles %s", procedure, roleNames(m.Roles), roleNames(ListRoles(p.Roles)))
	}
	return nil
}

// of lists the methods that ask for one of some roles.
func (all Methods) of(roles session.Roles) string {
	var names []string
	for procedure, m := range all {
		if m.allowed&roles != 0 {
			names = append(names, procedure)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// Denied refuses what a caller asks for and may not do.
func Denied(format string, args ...any) error {
	return fault.New(connect.CodePermissionDenied, fault.ReasonForbidden, fmt.Sprintf(format, args...))
}

func roleNames(roles []v1.Role) string {
	names := make([]string, len(roles))
	for i, r := range roles {
		names[i] = RoleName(r)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// RoleName is how people write a role: policy-author of ROLE_POLICY_AUTHOR.
func RoleName(r v1.Role) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_")), "_", "-")
}

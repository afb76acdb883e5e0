//! The rights that dlock needs, as a Role and its RoleBinding.

use super::location::Location;
use crate::backend::location::Policy;

/// Returns the command that gives a service account exactly these rights.
pub(super) fn policy(location: &Location) -> Policy {
    let namespace = &location.namespace;
    let manifest = format!(
        "kubectl apply -f - <<'END'
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: dlock
  namespace: {namespace}
rules:
- apiGroups: [\"coordination.k8s.io\"]
  resources: [\"leases\"]
  verbs: [\"get\", \"create\", \"update\", \"watch\", \"list\"]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: dlock
  namespace: {namespace}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: dlock
subjects:
- kind: ServiceAccount
  name: dlock
  namespace: {namespace}
END"
    );
    let note = "replace the subject by the user, group or service account of dlock; watch is for waiting, list for dlock status \
                without a name, and nothing needs delete. With resourceNames: [...] in a rule of its own for get, update and \
                watch, dlock may use only these Leases (create and list cannot be restricted by name)";
    Policy { commands: manifest.lines().map(str::to_owned).collect(), note: note.to_owned() }
}

//! Document of `GET /api/v1/routes`: compares the desired and the actual kernel state, object by object.

use crate::kernel::Rules;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
pub use types::kernel_object::{Foreign, Holder, Object, ObjectKind, ObjectState};

/// Name and version of the JSON format of [`Routes`].
pub const SCHEMA: &str = "flannel.routes/1";

/// Desired kernel objects with their actual state, and kernel objects of other programs. flanneld reads the kernel state for each request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routes {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// When flanneld read the kernel state, by the node's clock.
    pub at: Timestamp,
    pub node: String,
    /// Links, addresses, FDB entries, neighbours, routes.
    pub objects: Vec<Object>,
    /// Objects of other programs in this node's networks, on flannel's devices and on flannel's port. Also contains
    /// flannel's own leftovers.
    pub foreign: Vec<Foreign>,
    /// Absent if flanneld desires no rules.
    pub rules: Option<Rules>,
}

impl Routes {
    /// True if a desired object or a rule is not in sync, or an object of another program conflicts with a desired
    /// one.
    pub fn is_broken(&self) -> bool {
        let rules = self.rules.as_ref().is_some_and(|rules| !rules.in_place);
        rules
            || self.objects.iter().any(|object| object.state != ObjectState::InSync)
            || self.foreign.iter().any(|other| !other.conflicts_with.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_or_conflicting_object_makes_routes_broken() {
        let object = |state| Object {
            kind: ObjectKind::Route,
            text: String::new(),
            holder: None,
            state,
            found: None,
            why: None,
        };
        let foreign = |conflicts_with| Foreign {
            kind: ObjectKind::Route,
            text: String::new(),
            by: String::new(),
            own_subnet: false,
            conflicts_with,
        };
        let rules = |in_place| Some(Rules { in_place, ..Rules::default() });
        let well = Routes {
            objects: vec![object(ObjectState::InSync)],
            foreign: vec![foreign(vec![])],
            rules: rules(true),
            ..Routes::default()
        };
        assert!(!well.is_broken() && !Routes::default().is_broken());
        for state in [ObjectState::Missing, ObjectState::Different, ObjectState::Refused] {
            assert!(
                Routes {
                    objects: vec![object(ObjectState::InSync), object(state)],
                    ..well.clone()
                }
                .is_broken()
            );
        }
        assert!(
            Routes { foreign: vec![foreign(vec!["10.244.2.0/24".to_owned()])], ..well.clone() }
                .is_broken()
        );
        assert!(Routes { rules: rules(false), ..well }.is_broken());
    }
}

//! Evaluates a [`Sighting`]: finds the desired objects that exist, and the objects of other programs in flannel's networks and on its devices. Pure.

mod shadow;
#[cfg(test)]
mod tests;

use crate::kernel::OpError;
use crate::kinds::{describe_object, object_kind};
use crate::names::LinkName;
use crate::object::link::vxlan::VxlanSpec;
use crate::object::link::{Fit, LinkKind, LinkSpec, SeenLink};
use crate::object::{Key, Value};
use crate::report::protocols::{self, Protocols};
use crate::report::sighting::Sighting;
use crate::report::survey::{Origin, Seen};
use crate::report::text::Words;
use shadow::Shadows;
use std::collections::BTreeMap;
use types::kernel_object::{Foreign, Object, ObjectKind, ObjectState};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// The desired objects, compared with the kernel's.
    pub objects: Vec<Object>,
    /// Objects of other programs in flannel's networks or on its devices.
    pub foreign: Vec<Foreign>,
}

#[must_use]
pub fn inspect_kernel(sighting: &Sighting, protocols: Protocols) -> Inspection {
    // Of several objects with the same key, the kernel uses the first.
    let mut first: BTreeMap<Key, &Seen> = BTreeMap::new();
    for seen in &sighting.survey.objects {
        first.entry(seen.key).or_insert(seen);
    }
    let interfaces = sighting.survey.links.iter().map(|link| (link.index, link.name)).collect();
    let errors = sighting.errors.iter().rev().map(|error| (error.key, error)).collect();
    let judge = Judge { sighting, words: Words { protocols, interfaces }, first, errors };
    let objects = sighting.want.0.iter().map(|(key, wanted)| judge.object(key, wanted)).collect();
    let mut foreign: Vec<Foreign> =
        sighting.have.0.iter().filter_map(|(key, value)| judge.left_over(key, value)).collect();
    foreign.extend(judge.devices());
    let shadows = Shadows::of(sighting, |key| judge.is_there(key));
    foreign.extend(sighting.survey.objects.iter().filter_map(|seen| judge.foreign(seen, &shadows)));
    Inspection { objects, foreign }
}

struct Judge<'a> {
    sighting: &'a Sighting,
    words: Words,
    /// The first kernel object with each key, in flannel's networks and on its devices.
    first: BTreeMap<Key, &'a Seen>,
    errors: BTreeMap<Key, &'a OpError>,
}

impl Judge<'_> {
    /// Flannel's own objects take precedence.
    fn found(&self, key: &Key) -> Option<(&Value, Origin)> {
        let ours = self.sighting.have.0.get(key).map(|value| (value, Origin::Set));
        ours.or_else(|| self.first.get(key).map(|seen| (&seen.value, seen.origin)))
    }

    /// True if an object is desired and exists.
    fn is_there(&self, key: &Key) -> bool {
        self.found(key).is_some_and(|(found, _)| self.is_wanted(key, found))
    }

    fn is_wanted(&self, key: &Key, found: &Value) -> bool {
        self.sighting.want.0.get(key).is_some_and(|wanted| fits(wanted, found))
    }

    /// True for a link of the desired state and for an existing one of flannel's.
    fn is_named_ours(&self, name: LinkName) -> bool {
        [&self.sighting.want, &self.sighting.have].iter().any(|state| state.link(name).is_some())
    }

    fn object(&self, key: &Key, wanted: &Value) -> Object {
        let found = self.found(key);
        let (state, found, why) = match (found, self.errors.get(key)) {
            (Some((found, _)), _) if fits(wanted, found) => (ObjectState::InSync, None, None),
            (found, Some(error)) => (ObjectState::Refused, found, Some(error.why.to_string())),
            (Some(found), None) => (ObjectState::Different, Some(found), None),
            (None, None) => (ObjectState::Missing, None, None),
        };
        let found = found.map(|(found, origin)| match (key, wanted, found) {
            (Key::Link(name), Value::Link(wanted), Value::Link(found)) => {
                found.text_instead(*name, wanted, &self.words)
            }
            _ => describe_object(key, found, origin, &self.words),
        });
        let holder = self
            .sighting
            .owners
            .get(key)
            .and_then(|place| self.sighting.holders.get(*place))
            .cloned();
        Object {
            kind: object_kind(key, wanted),
            text: describe_object(key, wanted, Origin::Set, &self.words),
            holder,
            state,
            found,
            why,
        }
    }

    /// An object on flannel's device or with flanneld's protocol number that is not desired.
    /// flanneld removes such objects, usually before an operator sees them.
    fn left_over(&self, key: &Key, value: &Value) -> Option<Foreign> {
        let is_others = matches!(value, Value::Link(spec) if !spec.kind.is_flannels());
        if self.sighting.want.0.contains_key(key) || is_others {
            return None;
        }
        let by = match self.errors.get(key) {
            Some(error) => format!("left over: flanneld cannot remove the object: {}", error.why),
            None if self.sighting.held => {
                "left over: flanneld keeps the object for a minute, because the store may be incomplete"
                    .to_owned()
            }
            None => "left over: flanneld removes the object".to_owned(),
        };
        Some(Foreign {
            kind: object_kind(key, value),
            text: describe_object(key, value, Origin::Set, &self.words),
            by,
            own_subnet: false,
            conflicts_with: Vec::new(),
        })
    }

    /// Foreign vxlan devices that use the UDP ports of flannel's devices.
    fn devices(&self) -> Vec<Foreign> {
        let wanted = self.sighting.want.links();
        let ours: Vec<(LinkName, &VxlanSpec)> =
            wanted.filter_map(|(name, spec)| Some((name, as_vxlan(spec)?))).collect();
        let foreign = |SeenLink { name, spec, .. }: &SeenLink| {
            let theirs = as_vxlan(spec)?;
            let is_conflict = ours.iter().any(|(_, ours)| ours.port == theirs.port);
            if !is_conflict || self.is_named_ours(*name) {
                return None;
            }
            // The other family's tunnel has the same port and may have the same VNI.
            let missing = ours.iter().filter(|(name, ours)| {
                ours.is_same_tunnel(theirs) && !self.is_there(&Key::Link(*name))
            });
            Some(Foreign {
                kind: ObjectKind::Link,
                text: spec.text(*name, &self.words),
                by: "an operator or another program: the device has the UDP port of flannel's device"
                    .to_owned(),
                own_subnet: false,
                conflicts_with: missing.map(|(name, _)| name.to_string()).collect(),
            })
        };
        self.sighting.survey.links.iter().filter_map(foreign).collect()
    }

    /// True for the kernel's own route for an IPv6 address of flannel's device.
    fn follows_from_ours(&self, seen: &Seen) -> bool {
        match (&seen.key, &seen.value) {
            (Key::Route(net, _), Value::Route(route)) => {
                route.protocol == protocols::KERNEL
                    && self.sighting.want.0.contains_key(&Key::Address(route.dev, *net))
            }
            _ => false,
        }
    }

    /// `None` if the object is flannel's, matches a desired object, or is the kernel's route for an
    /// address of flannel.
    fn foreign(&self, seen: &Seen, shadows: &Shadows<'_>) -> Option<Foreign> {
        let is_ours = self.sighting.have.0.get(&seen.key) == Some(&seen.value);
        if is_ours || self.is_wanted(&seen.key, &seen.value) || self.follows_from_ours(seen) {
            return None;
        }
        let protocols = &self.words.protocols;
        let (by, own_subnet) = match (&seen.key, &seen.value) {
            (Key::Route(net, _), Value::Route(route)) => (
                protocols.maker(route.protocol, route.dev),
                self.sighting.own.nets().any(|own| own.contains(net)),
            ),
            _ => (describe_maker(seen.origin, protocols), false),
        };
        Some(Foreign {
            kind: object_kind(&seen.key, &seen.value),
            text: describe_object(&seen.key, &seen.value, seen.origin, &self.words),
            by,
            own_subnet,
            conflicts_with: shadows.cast_by(seen),
        })
    }
}

fn fits(wanted: &Value, found: &Value) -> bool {
    match (wanted, found) {
        (Value::Link(wanted), Value::Link(found)) => wanted.fit(found) == Fit::Same,
        (wanted, found) => wanted == found,
    }
}

fn as_vxlan(link: &LinkSpec) -> Option<&VxlanSpec> {
    match &link.kind {
        LinkKind::Vxlan(vxlan) => Some(vxlan),
        _ => None,
    }
}

/// The program that created a neighbour or an FDB entry.
fn describe_maker(origin: Origin, protocols: &Protocols) -> String {
    match origin {
        Origin::Set => "an operator or another program".to_owned(),
        Origin::Learned => "the kernel, which learned the entry, or an operator".to_owned(),
        Origin::ExternLearn => "a program that adds learned entries (extern_learn)".to_owned(),
        Origin::Protocol(protocol) => protocols.maker(protocol, LinkName::default()),
    }
}

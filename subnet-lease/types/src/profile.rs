//! What there is to know of a backend without running it: data, for daemon, options, doctor, tools and docs.
//!
//! Each backend has its profile in its own file; the registry of the backends lists them. Nobody asks for a backend by its name.

use crate::encapsulation::Encapsulation;
use crate::family::Family;

/// A backend, for those who do not run it.
#[derive(Debug, PartialEq, Eq)]
pub struct Profile {
    /// The name in the network configuration.
    pub name: &'static str,
    /// The devices that it makes on a node.
    pub devices: &'static [Device],
    /// The bytes that it adds to a packet.
    pub overhead: Overhead,
    /// What packets of pods travel in, with the ports of a configuration that names none.
    pub encapsulation: Encapsulation,
    /// What to take for its encapsulation where only its devices are seen. `None`: that would be a guess.
    pub seen_as: Option<Encapsulation>,
    /// Whether it carries packets of pods. Otherwise something else does.
    pub carries: bool,
    /// Whether nobody between the nodes can read or forge packets of pods.
    pub encrypts: bool,
    /// Whether the underlay has to reach all nodes without a gateway.
    pub needs_links: bool,
    /// Whether nodes may share one public address, because something else distinguishes them.
    pub shares_address: bool,
    /// Whether each peer has a permanent entry in the kernel's neighbour table.
    pub keeps_neighbours: bool,
    /// The keys of its `Backend` object that others name to the user.
    pub keys: Keys,
}

/// A device of a backend.
#[derive(Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name, or the part of it before the VNI.
    pub name: &'static str,
    /// Whether the VNI is the end of its name.
    pub is_numbered: bool,
    /// The kinds that it can have, in the kernel's words; that of the kernel's own implementation is the first.
    pub kinds: &'static [&'static str],
    /// The family whose packets it carries, if it is only one.
    pub family: Option<Family>,
}

/// The bytes that a backend adds to a packet, by the family of the packet around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overhead {
    /// Over IPv4.
    pub v4: u32,
    /// Over IPv6.
    pub v6: u32,
}

/// Keys of a `Backend` object.
#[derive(Debug, PartialEq, Eq)]
pub struct Keys {
    /// Those of its UDP ports.
    pub port: Option<&'static str>,
    /// Whether it has the key `MTU`.
    pub has_mtu: bool,
}

impl Profile {
    /// Its device of this name: the first of its devices that can have it.
    pub fn device(&self, name: &str) -> Option<&'static Device> {
        self.devices.iter().find(|device| device.is_named(name))
    }

    /// Its device for the packets of a family. Where the families can share one or have two, the encapsulation tells; `None`: it is not known.
    pub fn device_of(
        &self,
        family: Family,
        encapsulation: Option<Encapsulation>,
    ) -> Option<&'static Device> {
        let own = self
            .devices
            .iter()
            .find(|device| device.family == Some(family));
        let shared = self.devices.iter().find(|device| device.family.is_none());
        match (own, shared) {
            (Some(own), Some(shared)) => Some(if encapsulation?.outer().is_none() {
                own
            } else {
                shared
            }),
            (own, shared) => own.or(shared),
        }
    }
}

impl Device {
    /// A device with a name of its own that carries packets of all families.
    pub const fn shared(name: &'static str, kinds: &'static [&'static str]) -> Self {
        Device {
            name,
            is_numbered: false,
            kinds,
            family: None,
        }
    }

    /// Its name. `None` if the VNI is a part of it and is not known.
    pub fn named(&self, vni: Option<u32>) -> Option<String> {
        if self.is_numbered {
            vni.map(|vni| format!("{}{vni}", self.name))
        } else {
            Some(self.name.to_owned())
        }
    }

    /// Whether it can have this name.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        if self.is_numbered {
            self.vni_in(name).is_some()
        } else {
            self.name == name
        }
    }

    /// The VNI in its name.
    pub fn vni_in(&self, name: &str) -> Option<u32> {
        let number = name.strip_prefix(self.name).filter(|_| self.is_numbered)?;
        number
            .parse()
            .ok()
            .filter(|_| number.bytes().all(|byte| byte.is_ascii_digit()))
    }
}

impl Overhead {
    /// The same over both families.
    pub const fn of_both(bytes: u32) -> Self {
        Self {
            v4: bytes,
            v6: bytes,
        }
    }

    /// Over a family.
    pub fn over(self, family: Family) -> u32 {
        family.pick(self.v4, self.v6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dual::Dual;

    const TWO: Profile = Profile {
        name: "two",
        devices: &[
            Device::shared("dev", &["a"]),
            Device {
                name: "dev-v6.",
                is_numbered: true,
                kinds: &["a", "b"],
                family: Some(Family::V6),
            },
        ],
        overhead: Overhead { v4: 1, v6: 2 },
        encapsulation: Encapsulation::udp(7),
        seen_as: None,
        carries: true,
        encrypts: false,
        needs_links: false,
        shares_address: false,
        keeps_neighbours: false,
        keys: Keys {
            port: None,
            has_mtu: false,
        },
    };

    #[test]
    fn device_is_found_by_its_name_alone() {
        let named = |name| TWO.device(name).map(|device| device.name);
        assert_eq!(
            (named("dev"), named("dev-v6.7")),
            (Some("dev"), Some("dev-v6."))
        );
        for other in [
            "dev-v6.",
            "dev-v6.+7",
            "dev-v6.7x",
            "dev1",
            "dev-v6.99999999999",
            "",
        ] {
            assert_eq!(named(other), None, "{other}");
        }
        assert_eq!(TWO.devices[1].named(Some(7)).as_deref(), Some("dev-v6.7"));
        assert_eq!(
            (TWO.devices[1].named(None), TWO.devices[0].named(None)),
            (None, Some("dev".to_owned()))
        );
    }

    #[test]
    fn family_has_a_device_of_its_own_unless_one_tunnel_serves_all() {
        let of = |family, outer| {
            TWO.device_of(
                family,
                Some(Encapsulation::Udp {
                    ports: Dual::Both(1, 2),
                    outer,
                }),
            )
            .map(|device| device.name)
        };
        assert_eq!(
            (of(Family::V6, None), of(Family::V6, Some(Family::V4))),
            (Some("dev-v6."), Some("dev"))
        );
        assert_eq!(of(Family::V4, None), Some("dev"));
        assert_eq!(TWO.device_of(Family::V6, None), None, "it is not known");
    }
}

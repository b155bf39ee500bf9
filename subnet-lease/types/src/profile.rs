//! Profiles of backends: properties that are available without a running backend. The daemon, the options, the doctor, the tools and the docs use
//! them.
//!
//! Each backend defines its profile in its own file, and the registry of the backends lists it. The code of flanneld and flannelctl does not branch
//! on the name of a backend.

use crate::encapsulation::Encapsulation;
use crate::family::Family;

/// Properties of a backend that are available without a running backend.
#[derive(Debug, PartialEq, Eq)]
pub struct Profile {
    /// As in the network configuration.
    pub name: &'static str,
    /// Created on a node.
    pub devices: &'static [Device],
    /// Added to a packet.
    pub overhead: Overhead,
    /// Of pod packets, with the default ports.
    pub encapsulation: Encapsulation,
    /// What programs assume if only the backend's devices are known; `None` if these do not determine it.
    pub seen_as: Option<Encapsulation>,
    /// If false, another mechanism carries the packets of pods.
    pub carries: bool,
    /// It encrypts and authenticates packets of pods between the nodes.
    pub encrypts: bool,
    /// The underlay must reach all nodes without a gateway.
    pub needs_links: bool,
    /// Nodes may share one public address, because the backend distinguishes them by another property.
    pub shares_address: bool,
    /// Those that appear in messages to the user.
    pub keys: Keys,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Device {
    /// The whole name, or the part before the VNI.
    pub name: &'static str,
    /// The name ends with the VNI.
    pub is_numbered: bool,
    /// Link kinds that the kernel may report. The first one is the kernel's own implementation.
    pub kinds: &'static [&'static str],
    /// `None` if the device carries both families.
    pub family: Option<Family>,
}

/// In bytes, by the family of the outer packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overhead {
    pub v4: u32,
    pub v6: u32,
}

/// Of a `Backend` object in the network configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Keys {
    /// Key of the UDP port.
    pub port: Option<&'static str>,
    /// The object has the key `MTU`.
    pub has_mtu: bool,
}

impl Profile {
    /// The usual properties, of a backend without devices and encapsulation.
    pub const DEFAULT: Self = Self {
        name: "",
        devices: &[],
        overhead: Overhead::of_both(0),
        encapsulation: Encapsulation::None,
        seen_as: None,
        carries: true,
        encrypts: false,
        needs_links: false,
        shares_address: false,
        keys: Keys { port: None, has_mtu: false },
    };

    /// The first device that can have this name.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<&'static Device> {
        self.devices.iter().find(|device| device.is_named(name))
    }

    /// The device for the packets of a family. If the families may share one device or have separate ones, the encapsulation decides. `None` if the
    /// device is unknown.
    #[must_use]
    pub fn device_of(
        &self,
        family: Family,
        encapsulation: Option<Encapsulation>,
    ) -> Option<&'static Device> {
        let own = self.devices.iter().find(|device| device.family == Some(family));
        let shared = self.devices.iter().find(|device| device.family.is_none());
        match (own, shared) {
            (Some(own), Some(shared)) => {
                Some(if encapsulation?.outer().is_none() { own } else { shared })
            }
            (own, shared) => own.or(shared),
        }
    }
}

impl Device {
    /// With a fixed name, for packets of all families.
    #[must_use]
    pub const fn shared(name: &'static str, kinds: &'static [&'static str]) -> Self {
        Device { name, is_numbered: false, kinds, family: None }
    }

    /// `None` if the name contains the VNI and this is unknown.
    #[must_use]
    pub fn named(&self, vni: Option<u32>) -> Option<String> {
        if self.is_numbered {
            vni.map(|vni| format!("{}{vni}", self.name))
        } else {
            Some(self.name.to_owned())
        }
    }

    /// True if the device can have this name.
    #[must_use]
    pub fn is_named(&self, name: &str) -> bool {
        if self.is_numbered { self.vni_in(name).is_some() } else { self.name == name }
    }

    /// `None` if the name cannot belong to this device.
    #[must_use]
    pub fn vni_in(&self, name: &str) -> Option<u32> {
        let number = name.strip_prefix(self.name).filter(|_| self.is_numbered)?;
        number.parse().ok().filter(|_| number.bytes().all(|byte| byte.is_ascii_digit()))
    }
}

impl Overhead {
    #[must_use]
    pub const fn of_both(bytes: u32) -> Self {
        Self { v4: bytes, v6: bytes }
    }

    /// For outer packets of a family.
    #[must_use]
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
        keys: Keys { port: None, has_mtu: false },
    };

    #[test]
    fn device_is_found_by_its_name_alone() {
        let named = |name| TWO.device(name).map(|device| device.name);
        assert_eq!((named("dev"), named("dev-v6.7")), (Some("dev"), Some("dev-v6.")));
        for other in ["dev-v6.", "dev-v6.+7", "dev-v6.7x", "dev1", "dev-v6.99999999999", ""] {
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
            TWO.device_of(family, Some(Encapsulation::Udp { ports: Dual::Both(1, 2), outer }))
                .map(|device| device.name)
        };
        assert_eq!(
            (of(Family::V6, None), of(Family::V6, Some(Family::V4))),
            (Some("dev-v6."), Some("dev"))
        );
        assert_eq!(of(Family::V4, None), Some("dev"));
        assert_eq!(TWO.device_of(Family::V6, None), None, "no device without an encapsulation");
    }
}

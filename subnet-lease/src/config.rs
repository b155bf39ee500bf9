//! The network configuration (net-conf.json): parsed, completed with defaults and validated in one step.

use crate::json::{Object, excerpt, hide_values};
use crate::lease::RawJson;
use crate::table;
use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use types::{Detail, Dual, Problem, Subnets};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Pools of the nodes' subnets, one per family.
    pub pools: Dual<Pool, Pool>,
    pub networks: Subnets,
    /// For traffic rules, instead of iptables.
    pub nftables: bool,
    /// Destinations for which flanneld does not masquerade packets of pods (`NonMasqueradeCIDRs`, which Go flannel ignores).
    pub non_masquerade: Vec<IpNet>,
    /// Lower-case name; empty if `Backend` names none.
    pub backend: String,
    /// The `Backend` object as written; `{}` if the configuration lacks it.
    pub backend_config: RawJson,
    /// The store assigns the subnets, which may have any size. Then nodes choose none from the pools.
    pub assigned: bool,
}

/// The subnets of one family that nodes may lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    pub network: IpNet,
    /// Prefix length of a node's subnet.
    pub len: u8,
    /// Network address of the first subnet to assign (`SubnetMin`).
    pub min: IpAddr,
    /// Network address of the last subnet to assign (`SubnetMax`, inclusive).
    pub max: IpAddr,
}

impl Pool {
    /// Number of bits in an address of this family.
    #[must_use]
    pub fn width(&self) -> u8 {
        self.network.max_prefix_len()
    }

    /// Number of subnets; `u128::MAX` if it exceeds a `u128`.
    #[must_use]
    pub fn size(&self) -> u128 {
        let step_bits = u32::from(self.width() - self.len);
        ((bits(self.max) - bits(self.min)) >> step_bits).saturating_add(1)
    }

    /// The index counts from the pool's first subnet.
    #[must_use]
    pub fn subnet(&self, index: u128) -> Option<IpNet> {
        if index >= self.size() {
            return None;
        }
        let offset = index.checked_shl(u32::from(self.width() - self.len))?;
        IpNet::new(address(bits(self.min).checked_add(offset)?, self.network), self.len).ok()
    }

    /// `None` if the pool does not contain exactly this subnet.
    #[must_use]
    pub fn index(&self, subnet: &IpNet) -> Option<u128> {
        let start = bits(subnet.network());
        let same_family = subnet.max_prefix_len() == self.width();
        (same_family
            && subnet.prefix_len() == self.len
            && start >= bits(self.min)
            && start <= bits(self.max))
        .then(|| (start - bits(self.min)) >> u32::from(self.width() - self.len))
    }
}

/// An IPv4 address occupies the low 32 bits.
pub(crate) fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// Of the same family as `like`.
fn address(bits: u128, like: IpNet) -> IpAddr {
    match like {
        IpNet::V4(_) => IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(bits).unwrap_or(u32::MAX))),
        IpNet::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(bits)),
    }
}

impl NetworkConfig {
    /// Parses, completes and validates a net-conf.json.
    ///
    /// ```
    /// use subnet_lease::NetworkConfig;
    ///
    /// let text = r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#;
    /// let config = NetworkConfig::parse(text)?;
    /// assert_eq!(config.backend, "vxlan");
    /// let pool = config.pools.v4().unwrap();
    /// assert_eq!((pool.len, pool.size()), (24, 255));
    /// assert_eq!(pool.min.to_string(), "10.244.1.0");
    ///
    /// let error = NetworkConfig::parse(r#"{"Network": "10.244.0.0/29"}"#).unwrap_err();
    /// assert_eq!(error.code, "config-network-too-small");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, Problem> {
        Self::read(text, pool, false)
    }

    /// Parses a net-conf.json for a store that assigns the subnets. Like Go flannel, it ignores the members that delimit the pool (`SubnetLen` etc.).
    pub fn parse_assigned(text: &str) -> Result<Self, Problem> {
        let whole = |object: &Object<'_>, family: &Family| {
            let network = network(object, family)?;
            Ok(Pool {
                network,
                len: network.prefix_len(),
                min: network.network(),
                max: network.network(),
            })
        };
        Self::read(text, whole, true)
    }

    /// Names of the members that differ. Differences in the formatting of `Backend` do not count.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let backend = |config: &Self| {
            serde_json::from_str::<Value>(config.backend_config.as_str()).unwrap_or_default()
        };
        let (ours, theirs) = (&self.pools, &other.pools);
        let pools = [
            ("EnableIPv4", ours.v4().is_some() != theirs.v4().is_some()),
            ("EnableIPv6", ours.v6().is_some() != theirs.v6().is_some()),
        ]
        .into_iter()
        .chain(V4.differences(ours.v4(), theirs.v4()))
        .chain(V6.differences(ours.v6(), theirs.v6()));
        let others = [
            ("EnableNFTables", self.nftables != other.nftables),
            ("NonMasqueradeCIDRs", self.non_masquerade != other.non_masquerade),
            ("Backend", self.backend != other.backend || backend(self) != backend(other)),
        ];
        pools.chain(others).filter_map(|(name, differs)| differs.then_some(name)).collect()
    }

    /// JSON that [`NetworkConfig::parse`] reads as the same configuration. `None` if `Backend` contains a preshared key, which flanneld must not
    /// display.
    pub fn to_json(&self) -> Option<String> {
        let backend = Object::parse(self.backend_config.as_str()).ok()?;
        if backend.get("PSK").is_some() {
            return None;
        }
        let backend: Value = serde_json::from_str(self.backend_config.as_str()).ok()?;
        let mut json = serde_json::Map::new();
        let families = [("EnableIPv4", V4, self.pools.v4()), ("EnableIPv6", V6, self.pools.v6())];
        for (enabled, family, pool) in families {
            json.insert(enabled.to_owned(), pool.is_some().into());
            let Some(pool) = pool else { continue };
            json.insert(family.network.to_owned(), pool.network.to_string().into());
            if !self.assigned {
                json.insert(family.len.to_owned(), pool.len.into());
                json.insert(family.min.to_owned(), pool.min.to_string().into());
                json.insert(family.max.to_owned(), pool.max.to_string().into());
            }
        }
        if self.nftables {
            json.insert("EnableNFTables".to_owned(), true.into());
        }
        if !self.non_masquerade.is_empty() {
            let nets = self.non_masquerade.iter().map(ToString::to_string);
            json.insert("NonMasqueradeCIDRs".to_owned(), nets.collect());
        }
        let is_empty = backend.as_object().is_some_and(serde_json::Map::is_empty);
        match self.backend.as_str() {
            // These values stand for an absent object.
            "udp" if is_empty => {}
            "" if is_empty => drop(json.insert("Backend".to_owned(), Value::Null)),
            _ => drop(json.insert("Backend".to_owned(), backend)),
        }
        Some(Value::Object(json).to_string())
    }

    /// Leaves out the families that the given subnets lack.
    #[must_use]
    pub fn only(&self, subnets: &Subnets) -> Self {
        let v4 = subnets.v4().is_some();
        let v6 = subnets.v6().is_some();
        let pools = Dual::from_options(
            self.pools.v4().copied().filter(|_| v4),
            self.pools.v6().copied().filter(|_| v6),
        );
        let networks = Dual::from_options(
            self.networks.v4().copied().filter(|_| v4),
            self.networks.v6().copied().filter(|_| v6),
        );
        Self {
            pools: pools.unwrap_or(self.pools),
            networks: networks.unwrap_or(self.networks),
            ..self.clone()
        }
    }

    fn read(
        text: &str,
        pool: impl Fn(&Object<'_>, &Family) -> Result<Pool, Problem>,
        assigned: bool,
    ) -> Result<Self, Problem> {
        let object = Object::parse(text).map_err(|error| {
            let beginning = excerpt(text);
            let text = format!(
                "the network configuration is not valid JSON: {error}; it begins with {beginning}"
            );
            invalid_config("config-not-json", text)
        })?;
        let ipv4 = read_member(&object, "EnableIPv4")?.unwrap_or(true);
        let ipv6 = read_member(&object, "EnableIPv6")?.unwrap_or(false);
        let nftables = read_member(&object, "EnableNFTables")?.unwrap_or(false);
        let v4 = if ipv4 { Some(pool(&object, &V4)?) } else { None };
        let v6 = if ipv6 { Some(pool(&object, &V6)?) } else { None };
        let pools = Dual::from_options(v4, v6).ok_or_else(|| {
            invalid_config(
                "config-no-family",
                "EnableIPv4 and EnableIPv6 are both false; enable at least one address family",
            )
        })?;
        let networks = Dual::from_options(
            v4.and_then(|pool| if let IpNet::V4(net) = pool.network { Some(net) } else { None }),
            v6.and_then(|pool| if let IpNet::V6(net) = pool.network { Some(net) } else { None }),
        )
        .ok_or_else(|| invalid_config("config-no-network", "no network is defined"))?;
        let (backend, backend_config) = backend(&object)?;
        let non_masquerade = networks_in(&object, "NonMasqueradeCIDRs")?;
        Ok(Self { pools, networks, nftables, non_masquerade, backend, backend_config, assigned })
    }

    /// True if each subnet lies inside its family's network and is smaller than it. A subnet that the store assigns may be as large as the network.
    pub fn contains(&self, subnets: &Subnets) -> bool {
        let smaller = |half: Option<u8>, network: Option<u8>| {
            half.zip(network)
                .is_none_or(|(half, network)| half > network || self.assigned && half == network)
        };
        table::inside(subnets, &self.networks)
            && smaller(
                subnets.v4().map(ipnet::Ipv4Net::prefix_len),
                self.networks.v4().map(ipnet::Ipv4Net::prefix_len),
            )
            && smaller(
                subnets.v6().map(ipnet::Ipv6Net::prefix_len),
                self.networks.v6().map(ipnet::Ipv6Net::prefix_len),
            )
    }

    /// True if the families are the same, and each subnet belongs to its family's pool.
    #[must_use]
    pub fn fits(&self, subnets: &Subnets) -> bool {
        let v4 = match (self.pools.v4(), subnets.v4()) {
            (Some(pool), Some(net)) => pool.index(&IpNet::V4(*net)).is_some(),
            (None, None) => true,
            _ => false,
        };
        let v6 = match (self.pools.v6(), subnets.v6()) {
            (Some(pool), Some(net)) => pool.index(&IpNet::V6(*net)).is_some(),
            (None, None) => true,
            _ => false,
        };
        v4 && v6
    }
}

fn invalid_config(code: &'static str, text: impl Into<String>) -> Problem {
    Problem::new(code, text).with(Detail::ConfigInvalid { place: None })
}

fn bad_value(why: impl Display) -> Problem {
    let text = format!("the network configuration has a bad value: {why}");
    invalid_config("config-bad-value", text)
}

/// `None` if the member is absent or `null`.
fn read_member<T: DeserializeOwned>(object: &Object<'_>, name: &str) -> Result<Option<T>, Problem> {
    object.read(name).map_err(bad_value)
}

/// Reads a member that is a list of IPv4 and IPv6 networks.
fn networks_in(object: &Object<'_>, name: &str) -> Result<Vec<IpNet>, Problem> {
    let texts: Vec<String> = read_member(object, name)?.unwrap_or_default();
    let network = |text: &String| {
        IpNet::from_str(text).map(|net| net.trunc()).map_err(|_| {
            let value = excerpt(text);
            bad_value(format_args!("{name}: {value} is not a network such as 10.0.0.0/8"))
        })
    };
    texts.iter().map(network).collect()
}

/// The backend's type in lower case, and the `Backend` object.
fn backend(object: &Object<'_>) -> Result<(String, RawJson), Problem> {
    let Some(raw) = object.get("Backend") else {
        // Absent means `udp`. Go flannel's documentation says vxlan, but its code takes precedence.
        return Ok(("udp".to_owned(), RawJson::of(&serde_json::Map::new())));
    };
    if raw.get() == "null" {
        return Ok((String::new(), RawJson::of(&serde_json::Map::new())));
    }
    let bad =
        |why: &str| bad_value(format_args!("error decoding Backend property of config: {why}"));
    let not_an_object = |error: serde_json::Error| {
        let why = hide_values(&error);
        bad(&format!("{why}; it should be an object such as {{\"Type\":\"vxlan\"}}"))
    };
    let inner = Object::parse(raw.get()).map_err(not_an_object)?;
    // The error does not quote the value: it may be a key.
    let kind =
        inner.read::<String>("Type").map_err(|_| bad("Type is not a text such as \"vxlan\""))?;
    let raw = RawJson::parse(raw.get()).map_err(not_an_object)?;
    Ok((kind.unwrap_or_default().to_lowercase(), raw))
}

struct Family {
    network: &'static str,
    len: &'static str,
    min: &'static str,
    max: &'static str,
    width: u8,
    /// Used if the network is wide enough.
    usual_len: u8,
}

impl Family {
    /// The members of the family's pool, and whether each differs between the two pools. If only one configuration has the family, no member differs.
    fn differences(&self, ours: Option<&Pool>, theirs: Option<&Pool>) -> [(&'static str, bool); 4] {
        let differs =
            |differ: fn(&Pool, &Pool) -> bool| ours.zip(theirs).is_some_and(|(a, b)| differ(a, b));
        // Another network moves the first and the last subnet as well.
        let network = differs(|a, b| a.network != b.network);
        [
            (self.network, network),
            (self.len, !network && differs(|a, b| a.len != b.len)),
            (self.min, !network && differs(|a, b| a.len == b.len && a.min != b.min)),
            (self.max, !network && differs(|a, b| a.len == b.len && a.max != b.max)),
        ]
    }
}

const V4: Family = Family {
    network: "Network",
    len: "SubnetLen",
    min: "SubnetMin",
    max: "SubnetMax",
    width: 32,
    usual_len: 24,
};
const V6: Family = Family {
    network: "IPv6Network",
    len: "IPv6SubnetLen",
    min: "IPv6SubnetMin",
    max: "IPv6SubnetMax",
    width: 128,
    usual_len: 64,
};

fn pool(object: &Object<'_>, family: &Family) -> Result<Pool, Problem> {
    let network = network(object, family)?;
    let prefix = network.prefix_len();
    let member = family.network;
    let given: u64 = read_member(object, family.len)?.unwrap_or(0);
    let len = if given > 0 {
        if given > u64::from(family.width - 2) {
            let limit = family.width - 1;
            let text = format!("{} must be less than /{limit}, not {given}", family.len);
            return Err(invalid_config("config-subnet-too-small", text));
        }
        let len = u8::try_from(given).unwrap_or(u8::MAX);
        let least = prefix + 2;
        if len < least {
            let text = format!(
                "{member} {network}: network must be able to accommodate at least four subnets, so {} must be at least {least}, not {given}",
                family.len
            );
            return Err(invalid_config("config-too-few-subnets", text));
        }
        len
    } else {
        let longest = family.width - 4;
        if prefix > longest {
            let text = format!(
                "{member} {network}: network is too small. Minimum useful network prefix is /{longest}"
            );
            return Err(invalid_config("config-network-too-small", text));
        }
        if prefix <= family.usual_len - 2 { family.usual_len } else { prefix + 2 }
    };
    let step = 1u128 << u32::from(family.width - len);
    let first = bits(network.network());
    let last = bits(network.broadcast());
    let bound_inside = |name: &str, default: u128| -> Result<u128, Problem> {
        let bound = bound(object, family, name)?.unwrap_or(default);
        if bound < first || bound > last {
            let address = address(bound, network);
            let text = format!("{name} is not in the range of the Network {network}: {address}");
            return Err(invalid_config("config-bound-outside-network", text));
        }
        Ok(bound)
    };
    let min = bound_inside(family.min, first + step)?;
    let max = bound_inside(family.max, last - (step - 1))?;
    for (name, value) in [(family.min, min), (family.max, max)] {
        if value & (step - 1) != 0 {
            let address = address(value, network);
            let text = format!(
                "{name} is not on a SubnetLen boundary: {address} is not the beginning of a /{len}"
            );
            return Err(invalid_config("config-bound-inside-subnet", text));
        }
    }
    let pool = Pool { network, len, min: address(min, network), max: address(max, network) };
    if min > max {
        let text = format!(
            "{} {} is after {} {}: the range contains no subnet",
            family.min, pool.min, family.max, pool.max
        );
        return Err(invalid_config("config-no-subnet", text));
    }
    Ok(pool)
}

fn network(object: &Object<'_>, family: &Family) -> Result<IpNet, Problem> {
    let member = family.network;
    let missing = || {
        let text = format!("please define a correct {member} parameter in the flannel config");
        invalid_config("config-no-network", text)
    };
    let raw = object.get(member).ok_or_else(missing)?;
    let text = unquoted(raw.get());
    if text.is_empty() {
        return Err(missing());
    }
    let bad = |why: &str| bad_value(format_args!("{member}: invalid CIDR address: {text}: {why}"));
    let net = IpNet::from_str(&text)
        .map_err(|_| bad("use a network such as 10.244.0.0/16 or fd10:244::/48"))?
        .trunc();
    match net {
        IpNet::V4(_) if family.width == 32 => Ok(net),
        IpNet::V6(v6) if family.width == 128 && v6.addr().to_ipv4_mapped().is_none() => Ok(net),
        IpNet::V4(_) => {
            Err(bad("invalid IPv6 CIDR format; use an IPv6 network such as fd10:244::/48"))
        }
        IpNet::V6(_) => {
            Err(bad("invalid IPv4 CIDR format; use an IPv4 network such as 10.244.0.0/16"))
        }
    }
}

/// Reads `SubnetMin` or `SubnetMax` as an integer. `None` if the configuration lacks it; the caller then derives the bound.
fn bound(object: &Object<'_>, family: &Family, name: &str) -> Result<Option<u128>, Problem> {
    let Some(raw) = object.get(name) else {
        return Ok(None);
    };
    let text = unquoted(raw.get());
    let bad = |why: &str| bad_value(format_args!("{name}: {} is {why}", excerpt(&text)));
    if family.width == 128 && (text == "null" || text == "::") {
        return Ok(None);
    }
    match IpAddr::from_str(&text) {
        Ok(IpAddr::V4(v4)) if family.width == 32 => {
            Ok((v4 != Ipv4Addr::UNSPECIFIED).then(|| u128::from(v4.to_bits())))
        }
        Ok(IpAddr::V6(v6)) if family.width == 128 => Ok(Some(v6.to_bits())),
        // Go's parser reads an IPv4-mapped address as the IPv4 address.
        Ok(IpAddr::V6(v6)) => v6
            .to_ipv4_mapped()
            .map(|v4| Some(u128::from(v4.to_bits())))
            .ok_or_else(|| bad("not an IPv4 address")),
        Ok(IpAddr::V4(_)) => Err(bad("not an IPv6 address")),
        Err(_) => Err(bad("not an IP address")),
    }
}

/// The text of a JSON string, or the raw text of any other JSON value. Go flannel parses addresses and networks from the same text.
fn unquoted(raw: &str) -> String {
    serde_json::from_str::<String>(raw).unwrap_or_else(|_| raw.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(text: &str) -> Pool {
        *NetworkConfig::parse(text).unwrap().pools.v4().unwrap()
    }

    fn error(text: &str) -> String {
        NetworkConfig::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn json_is_read_as_the_same_configuration() {
        for text in [
            r#"{"Network":"10.3.0.0/16"}"#,
            r#"{"Network":"10.3.0.0/16","Backend":null}"#,
            r#"{"Network":"10.3.0.0/16","Backend":{}}"#,
            r#"{"Network":"10.3.0.0/16","SubnetMin":"10.3.5.0","SubnetMax":"10.3.8.0","SubnetLen":28,"Backend":{ "type": "vxlan", "VNI" : 7 }}"#,
            r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/48","EnableNFTables":true,"NonMasqueradeCIDRs":["10.9.0.0/16"]}"#,
        ] {
            let config = NetworkConfig::parse(text).unwrap();
            let again = NetworkConfig::parse(&config.to_json().unwrap()).unwrap();
            assert_eq!(config.differences(&again), [""; 0], "{text}: {again:?}");
        }
        let assigned = NetworkConfig::parse_assigned(r#"{"Network":"10.3.0.0/30"}"#).unwrap();
        let again = NetworkConfig::parse_assigned(&assigned.to_json().unwrap()).unwrap();
        assert_eq!(assigned.differences(&again), [""; 0]);
        let other = |text| NetworkConfig::parse(text).unwrap();
        let now = other(r#"{"Network":"10.3.0.0/16","Backend":{"Type":"vxlan"}}"#);
        let next = r#"{"Network":"10.3.0.0/16","SubnetLen":26,"Backend":{"Type":"vxlan","VNI":2}}"#;
        assert_eq!(now.differences(&other(next)), ["SubnetLen", "Backend"]);
        let secret =
            other(r#"{"Network":"10.3.0.0/16","Backend":{"Type":"wireguard","psk":"c2VjcmV0"}}"#);
        assert_eq!(secret.to_json(), None);
    }

    #[test]
    fn worked_values_of_the_specification() {
        let pool = v4(r#"{"Network":"10.3.0.0/16"}"#);
        assert_eq!(
            (pool.min.to_string(), pool.max.to_string(), pool.len),
            ("10.3.1.0".into(), "10.3.255.0".into(), 24)
        );
        let pool = v4(
            r#"{"Network":"10.3.0.0/16","SubnetMin":"10.3.5.0","SubnetMax":"10.3.8.0","SubnetLen":28}"#,
        );
        assert_eq!(
            (pool.min.to_string(), pool.max.to_string(), pool.len),
            ("10.3.5.0".into(), "10.3.8.0".into(), 28)
        );
        let config = NetworkConfig::parse(
            r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fc00::/48"}"#,
        )
        .unwrap();
        let pool = config.pools.v6().unwrap();
        assert_eq!(
            (pool.min.to_string(), pool.max.to_string(), pool.len),
            ("fc00:0:0:1::".into(), "fc00:0:0:ffff::".into(), 64)
        );
        let pool = v4(
            r#"{"Network":"10.0.0.0/8","SubnetLen":20,"SubnetMin":"10.10.0.0","SubnetMax":"10.99.0.0"}"#,
        );
        assert_eq!(
            (pool.min.to_string(), pool.max.to_string(), pool.len),
            ("10.10.0.0".into(), "10.99.0.0".into(), 20)
        );
        assert_eq!(v4(r#"{"Network":"10.3.7.9/16"}"#).network.to_string(), "10.3.0.0/16");
        assert_eq!(v4(r#"{"Network":"10.3.0.0/23"}"#).len, 25);
        assert_eq!(v4(r#"{"Network":"255.255.0.0/16"}"#).size(), 255);
    }

    #[test]
    fn each_rule_names_its_member() {
        for (text, part) in [
            (r#"{}"#, "please define a correct Network parameter"),
            (r#"{"Network":""}"#, "please define a correct Network parameter"),
            (r#"{"Network":null}"#, "invalid CIDR address: null"),
            (r#"{"Network":"fd00::/48"}"#, "invalid IPv4 CIDR format"),
            (r#"{"Network":"::ffff:10.0.0.0/112"}"#, "invalid IPv4 CIDR format"),
            (r#"{"Network":"10.0.0.0/16","SubnetLen":31}"#, "SubnetLen must be less than /31"),
            (r#"{"Network":"10.0.0.0/16","SubnetLen":17}"#, "at least four subnets"),
            (r#"{"Network":"10.0.0.0/16","SubnetLen":24.0}"#, "SubnetLen"),
            (r#"{"Network":"10.0.0.0/16","SubnetLen":"24"}"#, "SubnetLen"),
            (r#"{"Network":"10.0.0.0/16","SubnetLen":-1}"#, "SubnetLen"),
            (r#"{"Network":"10.0.0.0/29"}"#, "Minimum useful network prefix is /28"),
            (
                r#"{"Network":"10.0.0.0/16","SubnetMin":"10.1.0.0"}"#,
                "SubnetMin is not in the range of the Network",
            ),
            (
                r#"{"Network":"10.0.0.0/16","SubnetMax":"10.1.0.0"}"#,
                "SubnetMax is not in the range of the Network",
            ),
            (
                r#"{"Network":"10.0.0.0/16","SubnetMin":"10.0.0.7"}"#,
                "SubnetMin is not on a SubnetLen boundary",
            ),
            (
                r#"{"Network":"10.0.0.0/16","SubnetMin":"10.0.9.0","SubnetMax":"10.0.8.0"}"#,
                "is after",
            ),
            (r#"{"EnableIPv4":false}"#, "at least one address family"),
            (
                r#"{"EnableIPv6":true,"Network":"10.0.0.0/16"}"#,
                "please define a correct IPv6Network parameter",
            ),
            (
                r#"{"EnableIPv6":true,"Network":"10.0.0.0/16","IPv6Network":"10.0.0.0/16"}"#,
                "invalid IPv6 CIDR format",
            ),
            (r#"{"EnableIPv6":true,"Network":"10.0.0.0/16","IPv6Network":"fd00::/125"}"#, "/124"),
            (
                r#"{"Network":"10.0.0.0/16","Backend":7}"#,
                "error decoding Backend property of config",
            ),
            (r#"{"Network":"10.0.0.0/16"} x"#, "not valid JSON"),
            ("", "not valid JSON"),
        ] {
            assert!(error(text).contains(part), "{text}: {}", error(text));
        }
    }

    #[test]
    fn backend_type() {
        for (text, kind) in [
            (r#"{"Network":"10.0.0.0/16"}"#, "udp"),
            (r#"{"Network":"10.0.0.0/16","Backend":null}"#, ""),
            (r#"{"Network":"10.0.0.0/16","Backend":{}}"#, ""),
            (r#"{"network":"10.0.0.0/16","BACKEND":{"type":"VXLAN","VNI":7}}"#, "vxlan"),
        ] {
            assert_eq!(NetworkConfig::parse(text).unwrap().backend, kind, "{text}");
        }
        assert!(
            NetworkConfig::parse(
                r#"{"Network":"10.0.0.0/16","Backend":{"Type":"udp"},"nothing":1e999}"#
            )
            .is_ok()
        );
    }

    #[test]
    fn pool_index_is_the_inverse_of_subnet() {
        let pool = v4(r#"{"Network":"10.3.0.0/16","SubnetMin":"10.3.5.0","SubnetMax":"10.3.8.0"}"#);
        assert_eq!(pool.size(), 4);
        for index in 0..4 {
            assert_eq!(pool.index(&pool.subnet(index).unwrap()), Some(index));
        }
        assert_eq!(pool.subnet(4), None);
        assert_eq!(pool.index(&"10.3.9.0/24".parse().unwrap()), None);
        assert_eq!(pool.index(&"10.3.5.0/25".parse().unwrap()), None);
    }
}

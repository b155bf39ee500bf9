//! Keys of the `Backend` object that several backends share.

use crate::config_error::Fault;
use crate::error::LEAST_MTU_V6;
use packet_engine::table::Checks;
use std::ops::RangeInclusive;
use subnet_lease::json::Object;
use types::Subnets;

/// Parses a number. Returns `None` if the key is absent.
///
/// # Errors
/// Returns an error if the value is not a number or is out of range.
pub(crate) fn number<N>(
    object: &Object,
    key: &'static str,
    range: RangeInclusive<N>,
) -> Result<Option<N>, Fault>
where
    N: TryFrom<i64> + Into<u32> + PartialOrd + Copy,
{
    let Some(value) = object.read::<i64>(key).map_err(Fault::Member)? else {
        return Ok(None);
    };
    let (least, most) = range.into_inner();
    let number = N::try_from(value).ok().filter(|number| (least..=most).contains(number));
    number.map(Some).ok_or(Fault::Range { key, value, least: least.into(), most: most.into() })
}

/// Parses `MTU`, the MTU of the underlay in bytes. Returns `None` if the key is absent or 0.
///
/// # Errors
/// Returns an error if the value is not a number, or if the overhead leaves too little for packets of pods.
pub(crate) fn mtu(
    object: &Object,
    networks: &Subnets,
    overhead: (u32, u32),
) -> Result<Option<u32>, Fault> {
    let mtu = number(object, "MTU", 0..=65535_u32)?.filter(|mtu| *mtu != 0);
    let least = if networks.v6().is_some() { LEAST_MTU_V6 + overhead.1 } else { 68 + overhead.0 };
    match mtu.filter(|mtu| *mtu < least) {
        Some(mtu) => Err(Fault::Mtu { mtu, least }),
        None => Ok(mtu),
    }
}

/// Parses a word. Returns an empty string if the key is absent.
///
/// # Errors
/// Returns an error if the value is not a string.
pub(crate) fn word(object: &Object, key: &str) -> Result<String, Fault> {
    let word = object.read::<String>(key).map_err(Fault::Member)?;
    Ok(word.unwrap_or_default())
}

/// Parses `Checks`, the checks of packets that the packet engine receives.
///
/// # Errors
/// Returns an error, with the key and the remedy, if the value is not a string or not a known word.
pub(crate) fn checks(object: &Object) -> Result<Checks, Fault> {
    match word(object, "Checks")?.to_ascii_lowercase().as_str() {
        "" | "cluster" => Ok(Checks::Cluster),
        "strict" => Ok(Checks::Strict),
        "off" => Ok(Checks::Off),
        other => Err(Fault::Word {
            key: "Checks",
            value: other.to_owned(),
            words: &["cluster", "strict", "off"],
        }),
    }
}

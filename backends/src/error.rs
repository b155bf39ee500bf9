//! Problems that several backends report.

use netstate::Underlay;
use subnet_lease::RawJson;
use subnet_lease::json::{Object, hide_values};
use types::{Detail, Family, Problem};

/// In bytes, of an IPv6 link (RFC 8200).
pub(crate) const LEAST_MTU_V6: u32 = 1280;

pub(crate) fn config_problem(code: &'static str, text: impl Into<String>) -> Problem {
    Problem::new(code, text).with(Detail::ConfigInvalid { place: None })
}

pub(crate) fn invalid_config(text: impl Into<String>) -> Problem {
    config_problem("backend-config-invalid", text)
}

pub(crate) fn unannounced_backend(backend: &str) -> Problem {
    Problem::new("backend-not-announced", format!("{backend}: call announce before join"))
}

pub(crate) fn missing_underlay_address(
    backend: &str,
    family: Family,
    underlay: &Underlay,
) -> Problem {
    let Underlay { name, addresses, .. } = underlay;
    let text = format!(
        "{backend} needs an {family} address on the interface {name}, which has {addresses}; choose another interface with --iface"
    );
    Problem::new("underlay-address-missing", text)
}

pub(crate) fn absent_lease_key(key: &str) -> Problem {
    Problem::new("lease-data-missing", format!("the lease's backend data has no {key}"))
}

pub(crate) fn unusable_lease(text: impl Into<String>) -> Problem {
    Problem::new("lease-data-unusable", text)
}

/// The backend data of a lease, and the text in its member `key`.
pub(crate) fn read_lease_data<'a>(
    data: &'a RawJson,
    key: &str,
) -> Result<(Object<'a>, String), Problem> {
    let object = Object::parse(data.as_str()).map_err(|error| {
        let why = hide_values(&error);
        unusable_lease(format!("the lease's backend data is not a JSON object: {why}"))
    })?;
    let text = object
        .read(key)
        .map_err(|_| unusable_lease(format!("the lease's {key} is not a string")))?
        .ok_or_else(|| absent_lease_key(key))?;
    Ok((object, text))
}

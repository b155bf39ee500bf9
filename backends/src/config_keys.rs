//! The `Backend` object of a network configuration.

use crate::error::{LEAST_MTU_V6, invalid_config};
use packet_engine::Checks;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::ops::RangeInclusive;
use subnet_lease::json::Object;
use types::profile::Overhead;
use types::{Problem, Subnets};

/// What encapsulates or encrypts packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    /// An interface of the kernel.
    Kernel,
    /// The packet engine, with a TUN device.
    Userspace,
    /// The kernel if it supports the encapsulation, otherwise the packet engine.
    Auto,
}

/// Every key is optional. An error starts with the text of Go flannel, and contains the key and the remedy.
pub(crate) struct ConfigKeys<'a> {
    object: Object<'a>,
    backend: &'static str,
}

impl<'a> ConfigKeys<'a> {
    /// `backend` is the backend's name in the errors of Go flannel.
    pub(crate) fn parse(text: &'a str, backend: &'static str) -> Result<Self, Problem> {
        match Object::parse(text) {
            Ok(object) => Ok(Self { object, backend }),
            Err(error) => Err(decoding_error(backend, error)),
        }
    }

    pub(crate) fn error(&self, why: impl Display) -> Problem {
        decoding_error(self.backend, why)
    }

    pub(crate) fn read<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, Problem> {
        self.object.read(key).map_err(|error| self.error(error))
    }

    /// Reads a secret, which an error would quote.
    pub(crate) fn secret(&self, key: &str) -> Option<String> {
        Some(self.object.read(key).ok()?.unwrap_or_default())
    }

    pub(crate) fn number<N>(
        &self,
        key: &str,
        range: RangeInclusive<N>,
    ) -> Result<Option<N>, Problem>
    where
        N: TryFrom<i64> + Into<u32> + PartialOrd + Copy,
    {
        let Some(value) = self.read::<i64>(key)? else {
            return Ok(None);
        };
        let number = N::try_from(value).ok().filter(|number| range.contains(number));
        let (least, most) = range.into_inner();
        number.map(Some).ok_or_else(|| self.out_of_range(key, value, least.into(), most.into()))
    }

    pub(crate) fn out_of_range(&self, key: &str, value: i64, least: u32, most: u32) -> Problem {
        self.error(format!("{key} is {value}: it must be between {least} and {most}"))
    }

    /// The `MTU` of the underlay in bytes, where 0 is like an absent key.
    pub(crate) fn mtu(
        &self,
        networks: &Subnets,
        overhead: Overhead,
    ) -> Result<Option<u32>, Problem> {
        let mtu = self.number("MTU", 0..=65535_u32)?.filter(|mtu| *mtu != 0);
        let least =
            if networks.v6().is_some() { LEAST_MTU_V6 + overhead.v6 } else { 68 + overhead.v4 };
        match mtu.filter(|mtu| *mtu < least) {
            Some(mtu) => Err(self.error(format!(
                "MTU is {mtu}: this key is the MTU of the underlay and must be at least {least}; leave the key out to use the interface's MTU"
            ))),
            None => Ok(mtu),
        }
    }

    pub(crate) fn word(&self, key: &str) -> Result<String, Problem> {
        Ok(self.read(key)?.unwrap_or_default())
    }

    /// The case of letters does not matter. The first choice is the default.
    pub(crate) fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Result<T, Problem> {
        let value = self.word(key)?.to_ascii_lowercase();
        let is_chosen = |(word, _): &&(&str, T)| value.is_empty() || value == *word;
        choices.iter().find(is_chosen).map(|(_, choice)| *choice).ok_or_else(|| {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            self.error(format!("{key} is {value:?}: it must be {}", one_of(&words)))
        })
    }

    /// `Checks`, the checks of packets that the packet engine receives.
    pub(crate) fn checks(&self) -> Result<Checks, Problem> {
        let choices =
            [("cluster", Checks::Cluster), ("strict", Checks::Strict), ("off", Checks::Off)];
        self.choice("Checks", &choices)
    }
}

fn decoding_error(backend: &str, why: impl Display) -> Problem {
    invalid_config(format!("error decoding {backend} backend config: {why}"))
}

/// As `"a", "b" or "c"`.
pub(crate) fn one_of(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

//! Problems as values.
//!
//! Each error implements [`Coded`]: a code that never changes, a text with the remedy, and the [`Detail`] that other components act on. A
//! [`Problem`] is the serializable form of an error, for other components, programs and files. No component recognizes a problem by its text.

use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use thiserror::Error;

/// An error whose `Display` is the text for people.
///
/// The derived code is the name of the variant:
///
/// ```
/// use thiserror::Error;
/// use types::problem::PortPurpose;
/// use types::{Coded, Detail, Problem};
///
/// #[derive(Debug, Error, Coded)]
/// enum TunnelError {
///     #[error("another program uses UDP port {0}; choose another Port in the Backend")]
///     #[detail(Detail::PortTaken { number: *_0, udp: true, purpose: PortPurpose::Tunnel })]
///     PortTaken(u16),
/// }
/// let problem = Problem::from(TunnelError::PortTaken(8472));
/// assert_eq!(problem.code, "port-taken");
/// assert!(problem.text.starts_with("another program uses UDP port 8472;"));
/// assert!(matches!(problem.detail, Detail::PortTaken { number: 8472, .. }));
/// ```
pub trait Coded: fmt::Display {
    /// In kebab-case. The code stays the same between releases, because logs, metrics, files and the status API contain it.
    fn code(&self) -> &'static str;

    /// For other components.
    fn detail(&self) -> Detail {
        Detail::None
    }

    /// The individual problems, if the error consists of several.
    fn parts(&self) -> Vec<Problem> {
        Vec::new()
    }
}

/// For other components, programs and files.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{text}")]
pub struct Problem {
    pub code: Cow<'static, str>,
    /// The event, its cause and the remedy.
    pub text: String,
    #[serde(default, deserialize_with = "lenient")]
    pub detail: Detail,
    /// If this problem consists of several.
    #[serde(default)]
    pub parts: Vec<Problem>,
}

impl Problem {
    /// Where no caller branches on the error. The code never changes; the text has the remedy.
    pub fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self {
            code: Cow::Borrowed(code),
            text: text.into(),
            detail: Detail::None,
            parts: Vec::new(),
        }
    }

    #[must_use]
    pub fn with(self, detail: Detail) -> Self {
        Self { detail, ..self }
    }

    pub fn of<E: Coded>(problem: &E) -> Self {
        Self {
            code: Cow::Borrowed(problem.code()),
            text: problem.to_string(),
            detail: problem.detail(),
            parts: problem.parts(),
        }
    }

    /// From the text of an older version or of another program.
    pub fn in_words(text: impl Into<String>) -> Self {
        Self::new("unclassified", text)
    }

    /// This problem and the problems in `parts`, at any depth.
    #[must_use]
    pub fn all(&self) -> Vec<&Problem> {
        let mut all = vec![self];
        let mut next = 0;
        while let Some(problem) = all.get(next).copied() {
            all.extend(&problem.parts);
            next += 1;
        }
        all
    }

    /// Of this problem and of the problems in `parts`.
    pub fn details(&self) -> impl Iterator<Item = &Detail> {
        self.all().into_iter().map(|problem| &problem.detail).filter(|detail| !detail.is_none())
    }

    /// In this problem or one in `parts`.
    #[must_use]
    pub fn has(&self, code: &str) -> bool {
        self.all().iter().any(|problem| problem.code == code)
    }
}

impl<E: Coded> From<E> for Problem {
    fn from(problem: E) -> Self {
        Self::of(&problem)
    }
}

/// For other components: the doctor's checks, commands and documents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Detail {
    /// Only the code, without further data.
    #[default]
    None,
    PortTaken {
        number: u16,
        udp: bool,
        purpose: PortPurpose,
    },
    /// A kernel module.
    ModuleMissing {
        name: String,
    },
    /// `status` is the HTTP status, and `server` the address that did not respond.
    Store {
        cause: StoreCause,
        status: Option<u16>,
        server: Option<String>,
    },
    /// `example` is a valid configuration.
    ConfigMissing {
        place: ConfigPlace,
        example: String,
    },
    ConfigInvalid {
        place: Option<ConfigPlace>,
    },
    /// `holder` is the name and identity of the other node, from its lease.
    AddressInUse {
        address: Option<IpAddr>,
        holder: String,
    },
    /// `holder` is the name of the other machine, from its lease.
    IdentityInUse {
        holder: String,
    },
    OutOfSubnets,
    /// `cluster_cidr` is the address range that the cluster's controllers need.
    PodCidrMissing {
        cluster_cidr: Option<String>,
    },
    /// `user` is the account as the server names it.
    Forbidden {
        user: String,
        verb: String,
        resource: String,
    },
    ProgramMissing {
        program: String,
    },
    /// `file` is the lock of iptables, which another process holds.
    RulesLocked {
        file: PathBuf,
    },
    /// A detail from a later version of this program.
    #[serde(other)]
    Unknown,
}

impl Detail {
    #[must_use]
    pub const fn is_none(&self) -> bool {
        matches!(self, Detail::None)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortPurpose {
    /// The health endpoints.
    Health,
    /// The status API.
    Api,
    Probes,
    /// Packets of pods between nodes.
    Tunnel,
}

/// The causes are in the order of their usefulness to an operator: if several apply, messages show the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreCause {
    /// The disk quota is exhausted.
    NoSpace,
    /// The user lacks a permission.
    Role,
    /// The store refuses the user, password, token or certificate.
    User,
    CertificateNotYetValid,
    CertificateExpired,
    /// The other side does not trust the authority.
    CertificateAuthority,
    CertificateName,
    /// TLS fails for another reason.
    Tls,
    NoQuorum,
    /// The resolver does not know the name.
    Name,
    /// No process listens on the port.
    Refused,
    NoRoute,
    Silent,
    #[serde(other)]
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConfigPlace {
    /// In etcd.
    Key(String),
    File(PathBuf),
    /// Kubernetes mounts it from a ConfigMap.
    Mounted(PathBuf),
}

/// An unknown detail (from a later version, or manipulated) must not prevent the display of the problem's text.
fn lenient<'de, D: Deserializer<'de>>(from: D) -> Result<Detail, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    Ok(serde_json::from_value(value).unwrap_or(Detail::Unknown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Coded;

    #[derive(Debug, Error, Coded)]
    enum TestError {
        #[error("UDP port {0} is taken")]
        #[code("port-taken")]
        #[detail(Detail::PortTaken { number: *_0, udp: true, purpose: PortPurpose::Tunnel })]
        Taken(u16),
        #[error("UDP ports {0} and {1} are taken")]
        #[code("ports")]
        #[parts([_0, _1].map(|port| TestError::Taken(*port).into()).into())]
        Both(u16, u16),
    }

    #[test]
    fn problem_survives_a_file() {
        let problem = Problem::from(TestError::Both(1, 2));
        assert_eq!(problem.details().count(), 2);
        assert!(problem.has("port-taken") && problem.has("ports") && !problem.has("port"));
        let written = serde_json::to_string(&problem).unwrap();
        assert_eq!(serde_json::from_str::<Problem>(&written).unwrap(), problem);
        let short = Problem::in_words("x");
        assert_eq!(
            serde_json::from_str::<Problem>(r#"{"code":"unclassified","text":"x"}"#).unwrap(),
            short
        );
    }

    #[test]
    fn detail_of_a_later_version_is_unknown() {
        for detail in [
            r#"{"kind":"eclipse","moon":1}"#,
            r#"{"kind":"port-taken","number":-1}"#,
            "7",
            "null",
            "[]",
        ] {
            let problem: Problem =
                serde_json::from_str(&format!(r#"{{"code":"x","text":"y","detail":{detail}}}"#))
                    .unwrap();
            assert_eq!(problem.detail, Detail::Unknown, "{detail}");
        }
        let cause: StoreCause = serde_json::from_str("\"eclipse\"").unwrap();
        assert_eq!(cause, StoreCause::Other);
    }
}

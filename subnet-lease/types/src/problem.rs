//! Problems as values.
//!
//! Each crate has enums of its possible failures. Each enum implements [`Coded`], which provides a code that never
//! changes, a text with the remedy, and the [`Detail`] that other components act on. A [`Problem`] is the
//! serializable form of a failure, for other components, programs and files.
//! No component recognizes a problem by its text.

use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use thiserror::Error;

/// A failure in a crate: an enum with the data of each failure. The `Display` implementation of a failure writes the
/// text for people.
pub trait Coded: fmt::Display {
    /// Returns the failure's code in kebab-case. The code stays the same between releases, because logs, metrics,
    /// files and the status API contain it.
    fn code(&self) -> &'static str;

    /// Returns the failure's data for other components.
    fn detail(&self) -> Detail {
        Detail::None
    }

    /// Returns the individual problems, if the failure consists of several problems.
    fn parts(&self) -> Vec<Problem> {
        Vec::new()
    }
}

/// Serializable form of a failure, for other components, programs and files.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{text}")]
pub struct Problem {
    /// Code of the problem.
    pub code: Cow<'static, str>,
    /// Text for people: the event, its cause and the remedy.
    pub text: String,
    /// Data of the problem for other components.
    #[serde(default, deserialize_with = "lenient")]
    pub detail: Detail,
    /// Individual problems, if this problem consists of several problems.
    #[serde(default)]
    pub parts: Vec<Problem>,
}

impl Problem {
    /// Creates the problem for a failure.
    pub fn of<E: Coded>(problem: &E) -> Self {
        Self {
            code: Cow::Borrowed(problem.code()),
            text: problem.to_string(),
            detail: problem.detail(),
            parts: problem.parts(),
        }
    }

    /// Creates a problem from the text of an older version or of another program.
    pub fn in_words(text: impl Into<String>) -> Self {
        Self {
            code: Cow::Borrowed("unclassified"),
            text: text.into(),
            detail: Detail::None,
            parts: Vec::new(),
        }
    }

    /// Returns this problem and the problems in `parts`, at any depth.
    pub fn all(&self) -> Vec<&Problem> {
        let mut all = vec![self];
        let mut next = 0;
        while let Some(problem) = all.get(next).copied() {
            all.extend(&problem.parts);
            next += 1;
        }
        all
    }

    /// Returns the details of this problem and of the problems in `parts`.
    pub fn details(&self) -> impl Iterator<Item = &Detail> {
        self.all().into_iter().map(|problem| &problem.detail).filter(|detail| !detail.is_none())
    }

    /// Returns whether this problem or a problem in `parts` has the given code.
    pub fn has(&self, code: &str) -> bool {
        self.all().iter().any(|problem| problem.code == code)
    }
}

impl<E: Coded> From<E> for Problem {
    fn from(problem: E) -> Self {
        Self::of(&problem)
    }
}

/// Data of a problem for other components: the doctor's checks, commands and documents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Detail {
    /// Only the code, without further data.
    #[default]
    None,
    /// Port that another process uses.
    PortTaken {
        /// Number of the port.
        number: u16,
        /// Whether the port is a UDP port.
        udp: bool,
        /// Purpose for which this program needs the port.
        purpose: PortPurpose,
    },
    /// Missing kernel module.
    ModuleMissing {
        /// Name of the module.
        name: String,
    },
    /// The store is unusable.
    Store {
        /// The cause.
        cause: StoreCause,
        /// HTTP status, if the store uses HTTP.
        status: Option<u16>,
        /// Address that did not respond, if known.
        server: Option<String>,
    },
    /// Network configuration that does not exist.
    ConfigMissing {
        /// Required location of the configuration.
        place: ConfigPlace,
        /// A valid configuration.
        example: String,
    },
    /// Network configuration that exists but is unusable.
    ConfigInvalid {
        /// Location of the configuration, if known.
        place: Option<ConfigPlace>,
    },
    /// Another node that has this node's address.
    AddressInUse {
        /// The address.
        address: Option<IpAddr>,
        /// Name and identity of the other node, from the node's lease.
        holder: String,
    },
    /// Another machine that has this node's identity.
    IdentityInUse {
        /// Name of the other machine, from the machine's lease.
        holder: String,
    },
    /// Network whose subnets are all leased.
    OutOfSubnets,
    /// Lack of a subnet from Kubernetes for this node.
    PodCidrMissing {
        /// Address range that the cluster's controllers need, if the configuration contains it.
        cluster_cidr: Option<String>,
    },
    /// Request of this node's account that the API server denies.
    Forbidden {
        /// Account, as named by the server.
        user: String,
        /// Verb of the request, e.g. `get`.
        verb: String,
        /// Resource of the request, e.g. `nodes`.
        resource: String,
    },
    /// Required program that is not installed.
    ProgramMissing {
        /// Name of the program.
        program: String,
    },
    /// Lock of iptables that another process holds.
    RulesLocked {
        /// Path of the lock file.
        file: PathBuf,
    },
    /// A detail from a later version of this program.
    #[serde(other)]
    Unknown,
}

impl Detail {
    /// Returns whether the detail contains no data.
    pub const fn is_none(&self) -> bool {
        matches!(self, Detail::None)
    }
}

/// Purpose of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortPurpose {
    /// The health endpoints.
    Health,
    /// The status API.
    Api,
    /// The probes between nodes.
    Probes,
    /// Packets of pods between nodes.
    Tunnel,
}

/// Reason why a store is unusable. The causes are in the order of their usefulness to an operator: if several causes apply, messages show the first
/// cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreCause {
    /// Exhausted disk quota of the store.
    NoSpace,
    /// Permission that the user lacks.
    Role,
    /// Refusal of the user, password, token or certificate by the store.
    User,
    /// Certificate that is not valid yet.
    CertificateNotYetValid,
    /// A certificate has expired.
    CertificateExpired,
    /// Certificate of an authority that the other side does not trust.
    CertificateAuthority,
    /// Certificate of the store for another name or address.
    CertificateName,
    /// TLS failure for another reason.
    Tls,
    /// Lack of a quorum among the store's members.
    NoQuorum,
    /// Name of the store that the resolver cannot resolve.
    Name,
    /// Port on which no process listens.
    Refused,
    /// Lack of a route to the store.
    NoRoute,
    /// Store that does not respond in time.
    Silent,
    /// Any other cause.
    #[serde(other)]
    Other,
}

/// Location of the network configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConfigPlace {
    /// Key in etcd.
    Key(String),
    /// File.
    File(PathBuf),
    /// File that Kubernetes mounts from a ConfigMap.
    Mounted(PathBuf),
}

/// Deserializes a detail leniently. An unknown detail (from a later version, or manipulated) must not prevent the display of the problem's text.
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

//! Problems as values.
//!
//! Each crate has enums of what can fail in it. They implement [`Coded`]: a code that never changes, a text with the remedy for people, and
//! the [`Detail`] that other parts act on. A [`Problem`] is such a value on its way to other parts, other programs and files. Nothing is
//! ever recognised by its text.

use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

/// Whether problems show their code in place of their text: a build with `--cfg mute` proves that no part reads texts.
pub const MUTE: bool = cfg!(mute);

/// What can fail in a crate: an enum with the data of each failure. Its `Display` is the text for people; it goes through [`text`].
pub trait Coded: fmt::Display {
    /// The code, in kebab-case. It stays the same between releases: logs, metrics, files and the API carry it.
    fn code(&self) -> &'static str;

    /// What other parts act on.
    fn detail(&self) -> Detail {
        Detail::None
    }

    /// The problems that this one consists of, where there are several.
    fn parts(&self) -> Vec<Problem> {
        Vec::new()
    }
}

/// Writes the text of a problem: `say` writes it, unless this build is mute.
///
/// # Errors
/// Those of the formatter.
pub fn text<E: Coded>(
    f: &mut fmt::Formatter<'_>,
    problem: &E,
    say: impl FnOnce(&mut fmt::Formatter<'_>) -> fmt::Result,
) -> fmt::Result {
    if MUTE {
        f.write_str(problem.code())
    } else {
        say(f)
    }
}

/// A problem on its way to other parts, other programs and files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Which problem it is.
    pub code: Cow<'static, str>,
    /// What, why and what to do, for people.
    pub text: String,
    /// What other parts act on.
    #[serde(default, deserialize_with = "lenient")]
    pub detail: Detail,
    /// The problems that this one consists of.
    #[serde(default)]
    pub parts: Vec<Problem>,
}

impl Problem {
    /// The value of a failure.
    pub fn of<E: Coded>(problem: &E) -> Self {
        Self {
            code: Cow::Borrowed(problem.code()),
            text: problem.to_string(),
            detail: problem.detail(),
            parts: problem.parts(),
        }
    }

    /// A problem of which only the words are known: an older program wrote them, or another one's.
    pub fn in_words(text: impl Into<String>) -> Self {
        Self {
            code: Cow::Borrowed("unclassified"),
            text: text.into(),
            detail: Detail::None,
            parts: Vec::new(),
        }
    }

    /// This problem and those that it consists of, at any depth.
    pub fn all(&self) -> Vec<&Problem> {
        let mut all = vec![self];
        let mut next = 0;
        while let Some(problem) = all.get(next).copied() {
            all.extend(&problem.parts);
            next += 1;
        }
        all
    }

    /// The details of this problem and of those that it consists of.
    pub fn details(&self) -> impl Iterator<Item = &Detail> {
        self.all()
            .into_iter()
            .map(|problem| &problem.detail)
            .filter(|detail| !detail.is_none())
    }

    /// Whether it, or one that it consists of, has this code.
    pub fn has(&self, code: &str) -> bool {
        self.all().iter().any(|problem| problem.code == code)
    }
}

impl<E: Coded> From<E> for Problem {
    fn from(problem: E) -> Self {
        Self::of(&problem)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if MUTE { &self.code } else { &self.text })
    }
}

impl std::error::Error for Problem {}

/// The data of a problem that other parts act on: checks of the doctor, commands, documents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Detail {
    /// There is nothing to act on but the code.
    #[default]
    None,
    /// Another process has a port.
    PortTaken {
        /// Its number.
        number: u16,
        /// Whether it is UDP.
        udp: bool,
        /// What it is wanted for.
        purpose: PortPurpose,
    },
    /// A kernel module is missing.
    ModuleMissing {
        /// Its name.
        name: String,
    },
    /// The store cannot be used.
    Store {
        /// In which way.
        cause: StoreCause,
        /// The HTTP status, where the store speaks HTTP.
        status: Option<u16>,
        /// The address that did not answer, where one is known.
        server: Option<String>,
    },
    /// The network configuration is not there.
    ConfigMissing {
        /// Where it has to be.
        place: ConfigPlace,
        /// One that works.
        example: String,
    },
    /// The network configuration is there and cannot be used.
    ConfigInvalid {
        /// Where it is, as far as that is known to the one who reads it.
        place: Option<ConfigPlace>,
    },
    /// Another node has the address of this one.
    AddressInUse {
        /// The address.
        address: Option<IpAddr>,
        /// The other node, as its lease names it.
        holder: String,
    },
    /// Another machine has the identity of this one.
    IdentityInUse {
        /// The other machine, as its lease names it.
        holder: String,
    },
    /// All subnets of the network are leased.
    OutOfSubnets,
    /// Kubernetes assigned this node no subnet.
    PodCidrMissing {
        /// The range that the cluster's controllers need, where the configuration tells it.
        cluster_cidr: Option<String>,
    },
    /// The API server refuses what this node's account asks for.
    Forbidden {
        /// The account, as the server names it.
        user: String,
        /// What was asked for: `get`.
        verb: String,
        /// Of which resource: `nodes`.
        resource: String,
    },
    /// A program that is needed is not installed.
    ProgramMissing {
        /// Its name.
        program: String,
    },
    /// Another process keeps the lock of iptables.
    RulesLocked {
        /// The lock file.
        file: PathBuf,
    },
    /// A detail of a later version.
    #[serde(other)]
    Unknown,
}

impl Detail {
    /// Whether there is nothing to act on.
    pub const fn is_none(&self) -> bool {
        matches!(self, Detail::None)
    }
}

/// What a port is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortPurpose {
    /// The health endpoints.
    Health,
    /// The API.
    Api,
    /// The probes between nodes.
    Probes,
    /// Packets of pods between nodes.
    Tunnel,
}

/// In which way a store cannot be used. The causes stand in the order of how much they tell an operator: of several, the least is the one to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreCause {
    /// Its disk quota is used up.
    NoSpace,
    /// The user may not do it.
    Role,
    /// User, password, token or certificate are refused.
    User,
    /// A certificate is not valid yet.
    CertificateNotYetValid,
    /// A certificate has expired.
    CertificateExpired,
    /// A certificate is signed by an authority that the other side does not trust.
    CertificateAuthority,
    /// The store's certificate is for another name or address.
    CertificateName,
    /// Another failure of TLS.
    Tls,
    /// Its members have no quorum.
    NoQuorum,
    /// Its name cannot be resolved.
    Name,
    /// Nobody listens there.
    Refused,
    /// There is no route to it.
    NoRoute,
    /// It does not answer in time.
    Silent,
    /// Anything else.
    #[serde(other)]
    Other,
}

/// Where the network configuration is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConfigPlace {
    /// In etcd, at this key.
    Key(String),
    /// In a file.
    File(PathBuf),
    /// In a file that Kubernetes mounts from a ConfigMap.
    Mounted(PathBuf),
}

/// A detail of a later version, or one that was tampered with, is no reason to lose the text.
fn lenient<'de, D: Deserializer<'de>>(from: D) -> Result<Detail, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    Ok(serde_json::from_value(value).unwrap_or(Detail::Unknown))
}

#[cfg(test)]
mod tests {
    use super::*;

    enum Failure {
        Taken(u16),
        Both(u16, u16),
    }

    impl Coded for Failure {
        fn code(&self) -> &'static str {
            match self {
                Failure::Taken(_) => "port-taken",
                Failure::Both(..) => "ports",
            }
        }

        fn detail(&self) -> Detail {
            match self {
                Failure::Taken(number) => Detail::PortTaken {
                    number: *number,
                    udp: true,
                    purpose: PortPurpose::Tunnel,
                },
                Failure::Both(..) => Detail::None,
            }
        }

        fn parts(&self) -> Vec<Problem> {
            match self {
                Failure::Taken(_) => Vec::new(),
                Failure::Both(a, b) => [a, b].map(|port| Failure::Taken(*port).into()).into(),
            }
        }
    }

    impl fmt::Display for Failure {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            text(f, self, |f| match self {
                Failure::Taken(port) => write!(f, "UDP port {port} is taken"),
                Failure::Both(a, b) => write!(f, "UDP ports {a} and {b} are taken"),
            })
        }
    }

    #[test]
    fn problem_survives_a_file() {
        let problem = Problem::from(Failure::Both(1, 2));
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

    #[test]
    fn text_is_the_code_in_a_mute_build() {
        assert_eq!(
            Failure::Taken(7).to_string(),
            if MUTE {
                "port-taken"
            } else {
                "UDP port 7 is taken"
            }
        );
    }
}

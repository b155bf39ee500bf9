//! Client addresses of etcd servers, and the root of flannel's keys in etcd.

use std::fmt;
use types::Coded;

/// A client address of an etcd server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The host and port, or the unix socket, of the etcd server.
    pub target: Target,
    /// Whether the connection uses TLS.
    pub tls: bool,
}

/// The part of an endpoint that identifies the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A host name or address (IPv6 without brackets), and a port.
    Host(String, u16),
    /// The path of a unix socket.
    Unix(String),
}

/// Error for an endpoint address that contains a user name. The error quotes no part of the address, because the address may contain a password.
pub(super) const USER: &str = "the address of an etcd endpoint contains a user; give the user with --etcd-username and --etcd-password (better FLANNELD_ETCD_USERNAME and FLANNELD_ETCD_PASSWORD), and write an endpoint such as http://10.0.0.1:2379";

/// Returns whether an address contains a user name, with or without a password. The user name or password ends with `@`, which may be
/// percent-encoded.
pub(super) fn holds_user(text: &str) -> bool {
    text.contains('@') || text.contains("%40")
}

/// Error for a text that is not an etcd endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointError {
    /// A text that contains a user name. The error stores no part of the text, because the text may contain a password.
    User,
    /// A text that is not the address of an etcd endpoint.
    Bad {
        /// The text.
        text: String,
        /// The reason why the text is not an etcd endpoint.
        fault: EndpointFault,
    },
}

/// Reason why a text is not an etcd endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointFault {
    /// A request for TLS over a unix socket.
    UnixTls,
    /// A unix socket without a path.
    NoSocket,
    /// An unknown scheme.
    Scheme(String),
    /// A text that contains more than a host and a port.
    TooMuch,
    /// An IPv6 address without the closing bracket.
    NoBracket,
    /// Brackets that contain no IPv6 address.
    NoIpv6,
    /// A text after the closing bracket that is not a port.
    NoPort,
    /// An IPv6 address without brackets.
    BareIpv6,
    /// A port without a host.
    NoHost,
    /// A text after the host that is not a port number.
    Port(String),
}

impl Coded for EndpointError {
    fn code(&self) -> &'static str {
        match self {
            Self::User => "endpoint-with-user",
            Self::Bad { fault, .. } => match fault {
                EndpointFault::UnixTls => "endpoint-unix-tls",
                EndpointFault::NoSocket => "endpoint-without-path",
                EndpointFault::Scheme(_) => "endpoint-scheme",
                EndpointFault::TooMuch => "endpoint-with-path",
                EndpointFault::NoBracket | EndpointFault::BareIpv6 => "endpoint-brackets",
                EndpointFault::NoIpv6 => "endpoint-ipv6",
                EndpointFault::NoPort | EndpointFault::Port(_) => "endpoint-port",
                EndpointFault::NoHost => "endpoint-without-host",
            },
        }
    }
}

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User => f.write_str(USER),
            Self::Bad { text, fault } => {
                write!(f, "etcd endpoint {text:?}: ")?;
                match fault {
                    EndpointFault::UnixTls => {
                        f.write_str("TLS over a unix socket is not supported")
                    }
                    EndpointFault::NoSocket => f.write_str("the path of the socket is missing"),
                    EndpointFault::Scheme(scheme) => {
                        write!(f, "unknown scheme {scheme:?} (http, https and unix are known)")
                    }
                    EndpointFault::TooMuch => {
                        f.write_str("it contains more than a host and a port")
                    }
                    EndpointFault::NoBracket => f.write_str("the closing bracket is missing"),
                    EndpointFault::NoIpv6 => f.write_str("the brackets contain no IPv6 address"),
                    EndpointFault::NoPort => f.write_str("only a port may follow the bracket"),
                    EndpointFault::BareIpv6 => {
                        f.write_str("an IPv6 address needs brackets: http://[fd00::1]:2379")
                    }
                    EndpointFault::NoHost => f.write_str("the host is missing"),
                    EndpointFault::Port(port) => write!(f, "{port:?} is not a port"),
                }?;
                f.write_str("; write an endpoint such as http://10.0.0.1:2379")
            }
        }
    }
}

impl std::error::Error for EndpointError {}

impl Endpoint {
    /// Parses one endpoint. `tls_by_default` decides whether an endpoint without a scheme uses TLS.
    ///
    /// # Errors
    /// Returns an error if the text contains a user name or is not an endpoint address. The error names the fault and shows a valid address.
    pub fn parse(text: &str, tls_by_default: bool) -> Result<Self, EndpointError> {
        let bad = |fault| EndpointError::Bad { text: text.to_owned(), fault };
        if text.starts_with("unixs:") {
            return Err(bad(EndpointFault::UnixTls));
        }
        for (scheme, tls) in [("unix://", false), ("unix:", false)] {
            if let Some(path) = text.strip_prefix(scheme) {
                return if path.is_empty() {
                    Err(bad(EndpointFault::NoSocket))
                } else {
                    Ok(Self { target: Target::Unix(path.to_owned()), tls })
                };
            }
        }
        if holds_user(text) {
            return Err(EndpointError::User);
        }
        let (tls, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some((scheme, _)) => return Err(bad(EndpointFault::Scheme(scheme.to_owned()))),
            None => (tls_by_default, text),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#']) || rest.contains(char::is_whitespace) {
            return Err(bad(EndpointFault::TooMuch));
        }
        let (host, port) = match rest.strip_prefix('[') {
            Some(v6) => {
                let (host, port) =
                    v6.split_once(']').ok_or_else(|| bad(EndpointFault::NoBracket))?;
                let host =
                    host.parse::<std::net::Ipv6Addr>().map_err(|_| bad(EndpointFault::NoIpv6))?;
                let port = if port.is_empty() {
                    None
                } else {
                    Some(port.strip_prefix(':').ok_or_else(|| bad(EndpointFault::NoPort))?)
                };
                (host.to_string(), port)
            }
            None => match rest.rsplit_once(':') {
                Some((host, _)) if host.contains(':') => return Err(bad(EndpointFault::BareIpv6)),
                Some((host, port)) => (host.to_owned(), Some(port)),
                None => (rest.to_owned(), None),
            },
        };
        if host.is_empty() {
            return Err(bad(EndpointFault::NoHost));
        }
        let port = match port {
            None => 2379,
            Some(port) => port
                .parse()
                .ok()
                .filter(|port| *port > 0)
                .ok_or_else(|| bad(EndpointFault::Port(port.to_owned())))?,
        };
        Ok(Self { target: Target::Host(host, port), tls })
    }

    /// Returns the host and port of the endpoint; `None` for a unix socket.
    pub fn host(&self) -> Option<(&str, u16)> {
        match &self.target {
            Target::Host(host, port) => Some((host, *port)),
            Target::Unix(_) => None,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.tls { "s" } else { "" };
        match &self.target {
            Target::Host(host, port) if host.contains(':') => {
                write!(f, "http{s}://[{host}]:{port}")
            }
            Target::Host(host, port) => write!(f, "http{s}://{host}:{port}"),
            Target::Unix(path) => write!(f, "unix{s}:{path}"),
        }
    }
}

/// Cleans a path as Go's `path.Clean` does: removes double slashes, `.`, `..` and a trailing slash.
pub(crate) fn clean(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if rooted => {}
            _ => parts.push(part),
        }
    }
    let joined = parts.join("/");
    if rooted {
        format!("/{joined}")
    } else if joined.is_empty() {
        ".".to_owned()
    } else {
        joined
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_or_refused_with_a_reason() {
        for (text, tls, want) in [
            ("http://127.0.0.1:4001", true, "http://127.0.0.1:4001"),
            ("https://etcd.example:2379/", false, "https://etcd.example:2379"),
            ("HTTP://a:1", false, "http://a:1"),
            ("10.0.0.1:2379", false, "http://10.0.0.1:2379"),
            ("10.0.0.1:2379", true, "https://10.0.0.1:2379"),
            ("etcd", false, "http://etcd:2379"),
            ("http://[fd00::1]:2379", false, "http://[fd00::1]:2379"),
            ("[::1]", false, "http://[::1]:2379"),
            ("unix:/run/etcd.sock", false, "unix:/run/etcd.sock"),
            ("unix:///run/etcd.sock", false, "unix:/run/etcd.sock"),
        ] {
            assert_eq!(Endpoint::parse(text, tls).unwrap().to_string(), want, "{text}");
        }
        assert!(
            Endpoint::parse("unixs:///run/etcd.sock", false)
                .unwrap_err()
                .to_string()
                .contains("not supported")
        );
        for (text, part) in [
            ("ftp://a", "unknown scheme"),
            ("http://", "host is missing"),
            ("http://a:0", "not a port"),
            ("http://a:x", "not a port"),
            ("http://a:99999", "not a port"),
            ("fd00::1:2379", "brackets"),
            ("http://user:pw@a:1", "--etcd-username"),
            ("user@a", "--etcd-username"),
            ("http://user:pw%40a:1", "--etcd-username"),
            ("http://a:1/v2", "more than a host"),
            ("http://[fd00::1", "closing bracket"),
            ("http://[x]:1", "no IPv6 address"),
            ("unix:", "path of the socket"),
        ] {
            let error = Endpoint::parse(text, false).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("pw"), "{text}: {error}");
        }
    }

    #[test]
    fn paths_are_cleaned_as_go_does() {
        for (path, want) in [
            ("/coreos.com/network", "/coreos.com/network"),
            ("/coreos.com/network/", "/coreos.com/network"),
            ("//coreos.com//network//", "/coreos.com/network"),
            ("/a/../b", "/b"),
            ("/../b", "/b"),
            ("a/./b", "a/b"),
            ("../a", "../a"),
            ("a/../..", ".."),
            ("/", "/"),
            ("", "."),
        ] {
            assert_eq!(clean(path), want, "{path}");
        }
    }
}

//! Client addresses of etcd servers, and the root of flannel's keys in etcd.

use std::fmt;
use types::Problem;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub target: Target,
    pub tls: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A host name or address (IPv6 without brackets), and a port.
    Host(String, u16),
    /// The path of a unix socket.
    Unix(String),
}

/// Quotes no part of the address, because it may contain a password.
pub(super) const USER: &str = "the address of an etcd endpoint contains a user; give the user with --etcd-username and --etcd-password (better FLANNELD_ETCD_USERNAME and FLANNELD_ETCD_PASSWORD), and write an endpoint such as http://10.0.0.1:2379";

/// True for a user name with or without a password. It ends with `@`, which may be percent-encoded.
pub(super) fn holds_user(text: &str) -> bool {
    text.contains('@') || text.contains("%40")
}

impl Endpoint {
    /// `tls_by_default` decides whether an endpoint without a scheme uses TLS.
    pub fn parse(text: &str, tls_by_default: bool) -> Result<Self, Problem> {
        let bad = |code, why: &str| {
            Problem::new(
                code,
                format!(
                    "etcd endpoint {text:?}: {why}; write an endpoint such as http://10.0.0.1:2379"
                ),
            )
        };
        if text.starts_with("unixs:") {
            return Err(bad("endpoint-unix-tls", "TLS over a unix socket is not supported"));
        }
        for (scheme, tls) in [("unix://", false), ("unix:", false)] {
            if let Some(path) = text.strip_prefix(scheme) {
                return if path.is_empty() {
                    Err(bad("endpoint-without-path", "the path of the socket is missing"))
                } else {
                    Ok(Self { target: Target::Unix(path.to_owned()), tls })
                };
            }
        }
        if holds_user(text) {
            return Err(Problem::new("endpoint-with-user", USER));
        }
        let (tls, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some((scheme, _)) => {
                let why = format!("unknown scheme {scheme:?} (http, https and unix are known)");
                return Err(bad("endpoint-scheme", &why));
            }
            None => (tls_by_default, text),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#']) || rest.contains(char::is_whitespace) {
            return Err(bad("endpoint-with-path", "it contains more than a host and a port"));
        }
        let (host, port) = match rest.strip_prefix('[') {
            Some(v6) => {
                let (host, port) = v6
                    .split_once(']')
                    .ok_or_else(|| bad("endpoint-brackets", "the closing bracket is missing"))?;
                let host = host
                    .parse::<std::net::Ipv6Addr>()
                    .map_err(|_| bad("endpoint-ipv6", "the brackets contain no IPv6 address"))?;
                let port = if port.is_empty() {
                    None
                } else {
                    Some(port.strip_prefix(':').ok_or_else(|| {
                        bad("endpoint-port", "only a port may follow the bracket")
                    })?)
                };
                (host.to_string(), port)
            }
            None => match rest.rsplit_once(':') {
                Some((host, _)) if host.contains(':') => {
                    return Err(bad(
                        "endpoint-brackets",
                        "an IPv6 address needs brackets: http://[fd00::1]:2379",
                    ));
                }
                Some((host, port)) => (host.to_owned(), Some(port)),
                None => (rest.to_owned(), None),
            },
        };
        if host.is_empty() {
            return Err(bad("endpoint-without-host", "the host is missing"));
        }
        let port = match port {
            None => 2379,
            Some(port) => port
                .parse()
                .ok()
                .filter(|port| *port > 0)
                .ok_or_else(|| bad("endpoint-port", &format!("{port:?} is not a port")))?,
        };
        Ok(Self { target: Target::Host(host, port), tls })
    }

    /// `None` for a unix socket.
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

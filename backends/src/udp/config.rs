//! The keys of the `Backend` object for udp.

use crate::config_keys::ConfigKeys;
use packet_engine::table::Checks;
use types::Problem;

/// The default, as in Go flannel.
pub(super) const PORT: u16 = 8285;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// UDP; the same on all nodes.
    pub port: u16,
    /// The checks of received packets.
    pub checks: Checks,
}

impl Config {
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let keys = ConfigKeys::parse(text, "UDP")?;
        let port = keys.read::<i64>("Port")?.unwrap_or(0);
        let port = u16::try_from(port).map_err(|_| keys.out_of_range("Port", port, 1, 65535))?;
        Ok(Self { port: if port == 0 { PORT } else { port }, checks: keys.checks()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_keys_and_mistakes() {
        assert_eq!(Config::parse("{}"), Ok(Config { port: 8285, checks: Checks::Cluster }));
        assert_eq!(
            Config::parse(r#"{"type":"udp","port":8286,"CHECKS":"Strict"}"#),
            Ok(Config { port: 8286, checks: Checks::Strict })
        );
        for (text, part) in [
            (r#"{"Port":65536}"#, "Port is 65536"),
            (r#"{"Port":-1}"#, "Port is -1"),
            (r#"{"Port":"x"}"#, "Port"),
            (r#"{"Checks":"some"}"#, "Checks"),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(
                error.starts_with("error decoding UDP backend config: ") && error.contains(part),
                "{text}: {error}"
            );
        }
    }
}

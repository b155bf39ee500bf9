//! WireGuard keys for tests, in the formats of key files and leases.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use boringtun::x25519::{PublicKey, StaticSecret};
use lab::{Host, Store};
use serde_json::{Value, json};

/// A new private key and its public key.
pub(crate) struct Keys {
    pub(crate) private: StaticSecret,
    pub(crate) public: PublicKey,
}

impl Keys {
    pub(crate) fn new() -> Keys {
        let private = StaticSecret::from(rand::random::<[u8; 32]>());
        Keys { public: PublicKey::from(&private), private }
    }

    /// The private key in base64, without the line end that `wg genkey` prints.
    pub(crate) fn private_text(&self) -> String {
        STANDARD.encode(self.private.to_bytes())
    }

    /// The public key in base64, the format of leases.
    pub(crate) fn public_text(&self) -> String {
        STANDARD.encode(self.public.as_bytes())
    }
}

/// Decodes base64.
pub(crate) fn decode_base64_key(text: &str) -> Result<[u8; 32]> {
    STANDARD.decode(text)?.try_into().ok().context("32 bytes")
}

/// The JSON value for the backend `wireguard`.
pub(crate) fn wireguard_lease_value(at: Ipv4Addr, key: &str) -> String {
    json!({ "PublicIP": at, "PublicIPv6": null, "BackendType": "wireguard", "BackendData": { "PublicKey": key, "Port": 51820 } }).to_string()
}

/// The public key in the host's lease. Fails if it has none.
pub(crate) fn published_public_key(store: &Store, host: &Host) -> Result<String> {
    let own = host.v4()?.to_string();
    for (_, value) in store.lease_names_and_values()? {
        let value: Value = serde_json::from_str(&value)?;
        if value["PublicIP"] == own {
            return Ok(value["BackendData"]["PublicKey"]
                .as_str()
                .context("a lease without a key")?
                .to_owned());
        }
    }
    anyhow::bail!("{} has no lease", host.name())
}

/// Creates the file's folder.
pub(crate) fn daemon_key_path_with_folder(host: &Host) -> Result<PathBuf> {
    let path = host.subnet_file()?.with_file_name("wgkey");
    fs::create_dir_all(path.parent().context("no folder")?)?;
    Ok(path)
}

/// Replaces the file atomically, as `mv` does.
pub(crate) fn replace_file_atomically(path: &Path, text: &str) -> Result<()> {
    let name = path.file_name().context("the path of a file")?.to_string_lossy();
    let new = path.with_file_name(format!(".{name}.new"));
    fs::write(&new, text)?;
    fs::rename(&new, path).with_context(|| format!("replacing {}", path.display()))
}

//! Access to etcd through etcdctl, which operators also use.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use serde::Deserialize;

use crate::net::netns::Netns;
use crate::store::ca::Certificates;

/// In a namespace, with endpoints and credentials. Clones are independent.
#[derive(Debug, Clone)]
pub struct EtcdClient {
    pub(crate) netns: Netns,
    pub(crate) etcdctl: PathBuf,
    /// This client reaches it from its namespace.
    pub(crate) local: String,
    /// Reachable from all hosts: the daemons' `--etcd-endpoints`.
    pub(crate) endpoints: Vec<String>,
    pub(crate) certificates: Option<Certificates>,
    pub(crate) user: Option<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    pub key: String,
    pub value: String,
    /// Of the key's creation.
    pub create_revision: i64,
    /// Of the key's last write.
    pub mod_revision: i64,
    /// Writes since the key's creation.
    pub version: i64,
    /// 0 without a lease.
    pub lease: i64,
}

impl EtcdClient {
    /// The daemons' `--etcd-endpoints`.
    pub fn daemon_endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// `None` without TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> EtcdClient {
        self.user = Some((name.to_owned(), password.to_owned()));
        self
    }

    /// The result is the standard output.
    pub fn etcdctl(&self, args: &[&str]) -> Result<String> {
        let output = self.netns.run(|| {
            let mut command = Command::new(&self.etcdctl);
            command
                .env("ETCDCTL_API", "3")
                // No deadline of its own: a slow machine fails no test before the guard.
                .args(["--dial-timeout=1h", "--command-timeout=1h"])
                .arg(format!("--endpoints={}", self.local));
            if let Some(files) = &self.certificates {
                command
                    .arg("--cacert")
                    .arg(files.ca())
                    .arg("--cert")
                    .arg(files.client())
                    .arg("--key")
                    .arg(files.client_key());
            }
            if let Some((name, password)) = &self.user {
                command.arg(format!("--user={name}:{password}"));
            }
            command.args(args).output()
        })?;
        let output = output.with_context(|| format!("starting {}", self.etcdctl.display()))?;
        if !output.status.success() {
            bail!("etcdctl {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The key has no lease.
    pub fn put(&self, key: &str, value: &str) -> Result<()> {
        self.etcdctl(&["put", "--", key, value]).map(drop)
    }

    /// etcd deletes the key when the lease ends.
    pub fn put_leased(&self, key: &str, value: &str, lease: i64) -> Result<()> {
        self.etcdctl(&["put", &format!("--lease={lease:x}"), "--", key, value]).map(drop)
    }

    /// `None` if the key does not exist.
    pub fn get(&self, key: &str) -> Result<Option<KeyValue>> {
        Ok(self.get_key_values(&["get", "--", key])?.into_iter().next())
    }

    /// Sorted by key.
    pub fn get_prefix(&self, prefix: &str) -> Result<Vec<KeyValue>> {
        self.get_key_values(&["get", "--prefix", "--", prefix])
    }

    /// True if the key existed.
    pub fn del(&self, key: &str) -> Result<bool> {
        Ok(self.etcdctl(&["del", "--", key])?.trim() != "0")
    }

    /// The result is the lease's ID.
    pub fn grant(&self, seconds: u32) -> Result<i64> {
        let answer = self.etcdctl(&["lease", "grant", &seconds.to_string()])?;
        let number = answer.split_whitespace().nth(1).with_context(|| format!("{answer:?}"))?;
        i64::from_str_radix(number, 16).with_context(|| format!("lease {number}"))
    }

    /// Deletes the keys of the lease.
    pub fn revoke(&self, lease: i64) -> Result<()> {
        self.etcdctl(&["lease", "revoke", &format!("{lease:x}")]).map(drop)
    }

    /// `None` if the lease has ended.
    pub fn seconds_left(&self, lease: i64) -> Result<Option<i64>> {
        #[derive(Deserialize)]
        struct TimeToLive {
            ttl: i64,
        }
        let left: TimeToLive = serde_json::from_str(&self.etcdctl(&[
            "lease",
            "timetolive",
            "-w",
            "json",
            &format!("{lease:x}"),
        ])?)?;
        Ok(Some(left.ttl).filter(|seconds| *seconds > 0))
    }

    pub fn snapshot(&self, file: &Path) -> Result<()> {
        self.etcdctl(&["snapshot", "save", &file.to_string_lossy()]).map(drop)
    }

    /// The user may read and write below the prefix.
    pub fn add_user(&self, name: &str, password: &str, prefix: &str) -> Result<()> {
        self.etcdctl(&["user", "add", &format!("{name}:{password}")])?;
        self.etcdctl(&["role", "add", name])?;
        self.etcdctl(&["role", "grant-permission", name, "--prefix=true", "readwrite", prefix])?;
        self.etcdctl(&["user", "grant-role", name, name]).map(drop)
    }

    pub(crate) fn daemon_args(&self) -> Vec<String> {
        let mut args = vec![format!("--etcd-endpoints={}", self.endpoints.join(","))];
        if let Some(files) = &self.certificates {
            args.push(format!("--etcd-cafile={}", files.ca().display()));
            args.push(format!("--etcd-certfile={}", files.client().display()));
            args.push(format!("--etcd-keyfile={}", files.client_key().display()));
        }
        if let Some((name, password)) = &self.user {
            args.push(format!("--etcd-username={name}"));
            args.push(format!("--etcd-password={password}"));
        }
        args
    }

    fn get_key_values(&self, args: &[&str]) -> Result<Vec<KeyValue>> {
        self.run_json_command(args)?.kvs.into_iter().map(KeyValue::try_from).collect()
    }

    fn run_json_command(&self, args: &[&str]) -> Result<Answer> {
        let answer = self.etcdctl(&[&["-w", "json"], args].concat())?;
        serde_json::from_str(&answer).context("reading etcdctl's answer")
    }
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    kvs: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    key: String,
    #[serde(default)]
    value: String,
    create_revision: i64,
    mod_revision: i64,
    version: i64,
    #[serde(default)]
    lease: i64,
}

impl TryFrom<Entry> for KeyValue {
    type Error = anyhow::Error;

    fn try_from(entry: Entry) -> Result<KeyValue> {
        let text = |encoded: &str| {
            Ok::<_, anyhow::Error>(
                String::from_utf8_lossy(
                    &BASE64.decode(encoded).with_context(|| format!("{encoded:?}"))?,
                )
                .into_owned(),
            )
        };
        let Entry { create_revision, mod_revision, version, lease, .. } = entry;
        Ok(KeyValue {
            key: text(&entry.key)?,
            value: text(&entry.value)?,
            create_revision,
            mod_revision,
            version,
            lease,
        })
    }
}

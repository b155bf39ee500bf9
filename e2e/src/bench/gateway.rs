//! Writes many leases into etcd at once through its JSON gateway. One etcdctl process per key would take minutes.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lab::Netns;

/// Operations in an etcd transaction (etcd's default).
const BATCH: usize = 128;

/// All keys belong to one etcd lease.
pub(crate) fn put_entries_with_lease(
    store: &Netns,
    entries: &[(String, String)],
    lease: i64,
) -> Result<()> {
    for batch in entries.chunks(BATCH) {
        let puts: Vec<serde_json::Value> = batch
            .iter()
            .map(|(key, value)| serde_json::json!({"requestPut": {"key": STANDARD.encode(key), "value": STANDARD.encode(value), "lease": lease.to_string()}}))
            .collect();
        post_json(store, "/v3/kv/txn", &serde_json::json!({"success": puts}))?;
    }
    Ok(())
}

fn post_json(store: &Netns, path: &str, body: &serde_json::Value) -> Result<()> {
    let body = body.to_string();
    let answer = store.run(|| -> Result<String> {
        let mut stream = TcpStream::connect("127.0.0.1:2379")?;
        write!(stream, "POST {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    })?;
    let answer = answer.context("asking etcd's gateway")?;
    if !answer.starts_with("HTTP/1.1 200") {
        bail!("etcd's gateway: {}", answer.lines().last().unwrap_or_default());
    }
    Ok(())
}

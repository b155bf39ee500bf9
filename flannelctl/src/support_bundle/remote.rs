//! The bundle of another Kubernetes node. flannel's pod there gathers it, and the API provides the pod's
//! logs.

use std::io::Read;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use flate2::read::GzDecoder;
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use kube::{Api, Client, ResourceExt};

use super::scrub::scrub;
use crate::kubernetes::{self, ClusterFlags, respond_within};
use crate::store;

/// For the command in the pod, where flannelctl also limits each program.
const TIMEOUT: Duration = Duration::from_secs(60);
/// For reading a log from the API.
const LOG_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest log.
const LINES: i64 = 5000;
/// The longest file of the bundle, in bytes.
const LIMIT: u64 = 4 << 20;
/// For the daemon's container; `true` selects the log of the previous one.
const LOGS: [(&str, bool); 2] = [("flanneld/pod.log", false), ("flanneld/pod-previous.log", true)];

/// Names and contents of the bundle's files.
pub(super) type Files = Vec<(String, String)>;

/// Fails if the node has no pod of flannel, or the pod has no `flannelctl`.
pub(super) fn gather(node: &str, flags: &ClusterFlags) -> Result<Files> {
    store::run(async {
        let cluster = flags.connect().await?;
        let pods = cluster.pods().await?;
        let pod = kubernetes::on_node(&pods, node)?;
        let command = ["flannelctl", "support-bundle", "--file=-"];
        let printed = kubernetes::exec(&cluster.client, pod, &command);
        let printed = respond_within(TIMEOUT, printed).await.with_context(|| node.to_owned())?;
        let mut files = unpacked(&printed.out).with_context(|| {
            let line = printed.message.lines().next().unwrap_or_default();
            format!("flannelctl in the pod on {node} printed no bundle (Go flannel and earlier versions cannot print one): {line}")
        })?;
        for (name, previous) in LOGS {
            let text = log(&cluster.client, pod, previous).await;
            files.retain(|(known, _)| !known.starts_with(name));
            files.push(match text {
                Ok(text) => (name.to_owned(), scrub(&text)),
                Err(why) => (format!("{name}.missing"), format!("{why}\n")),
            });
        }
        Ok(files)
    })
}

async fn log(client: &Client, pod: &Pod, previous: bool) -> Result<String> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let parameters = LogParams {
        container: Some(kubernetes::container(pod)),
        previous,
        tail_lines: Some(LINES),
        timestamps: true,
        ..LogParams::default()
    };
    let name = pod.name_any();
    let log = async {
        api.logs(&name, &parameters).await.map_err(|error| kubernetes::explain_failure(&error))
    };
    respond_within(LOG_TIMEOUT, log).await
}

/// The files in an archive, named without the top folder.
fn unpacked(bytes: &[u8]) -> Result<Files> {
    let mut archive = tar::Archive::new(GzDecoder::new(bytes));
    let mut files = Files::new();
    for entry in archive.entries()? {
        let entry = entry?;
        let path = entry.path()?.into_owned();
        // The pod chooses the names, so `..` could lead out of the folder.
        let mut parts = path.components();
        parts.next();
        let name = parts.as_path();
        let is_plain =
            name.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        let Some(name) = name.to_str().filter(|name| is_plain && !name.is_empty()) else {
            continue;
        };
        let name = name.to_owned();
        let mut text = Vec::new();
        entry.take(LIMIT).read_to_end(&mut text)?;
        files.push((name, String::from_utf8_lossy(&text).into_owned()));
    }
    if files.is_empty() {
        bail!("the archive is empty");
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support_bundle::archive::Archive;

    #[test]
    fn files_of_an_archive_are_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.tar.gz");
        let mut archive = Archive::create(&path, "top").unwrap();
        archive.add("net/links.txt", "eth0\n").unwrap();
        archive.add("host/uname.txt.missing", "no uname\n").unwrap();
        archive.finish().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(
            unpacked(&bytes).unwrap(),
            [
                ("net/links.txt".to_owned(), "eth0\n".to_owned()),
                ("host/uname.txt.missing".to_owned(), "no uname\n".to_owned())
            ]
        );
        assert!(unpacked(b"").is_err() && unpacked(b"no archive").is_err());
        assert!(unpacked(&bytes[..bytes.len() / 2]).is_err());
    }

    #[test]
    fn hostile_names_are_left_out() {
        let mut builder = tar::Builder::new(Vec::new());
        for name in ["top/good", "top/a/../../x"] {
            let mut header = tar::Header::new_gnu();
            header.set_size(1);
            // Sets the name directly, because `set_path` refuses such names.
            let field = &mut header.as_gnu_mut().unwrap().name;
            field[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            builder.append(&header, &b"x"[..]).unwrap();
        }
        let bytes = builder.into_inner().unwrap();
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut packed, &bytes).unwrap();
        let files = unpacked(&packed.finish().unwrap()).unwrap();
        assert_eq!(files, [("good".to_owned(), "x".to_owned())]);
    }
}

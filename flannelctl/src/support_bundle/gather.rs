//! Reads one item of the support bundle, with limits on time and size, or finds the reason why it is missing.

use std::fs::OpenOptions;
use std::io::{self, Read as _, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use doctor::look::{Places, daemon_logs};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use types::file::{self, Links};

use super::wanted::{Item, Source, suffixed};
use crate::ask;

/// For a program whose output is an item.
const TIMEOUT: Duration = Duration::from_secs(10);
/// One item in bytes. A pod's log keeps its end. journalctl limits its output by lines.
const LIMIT: u64 = 4 * 1024 * 1024;

/// Docker's container logs.
const DOCKERS: &str = "/var/lib/docker/containers";

/// The error is the reason why the item is not in the bundle.
pub(super) async fn item(item: &Item, subnet_file: &Path) -> Result<String> {
    match &item.source {
        Source::Daemon(target) => Ok(cut(ask::text(subnet_file, target)?.into_bytes())),
        Source::Suffixed(end) => file(&suffixed(subnet_file, end)),
        Source::File(path) => file(Path::new(path)),
        Source::PodLog(before) => pod_log(&Places::default(), *before),
        Source::Program(words) => program(words).await,
    }
}

fn file(path: &Path) -> Result<String> {
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        file::open(path, OpenOptions::new().read(true), Links::Refused)?
            .take(LIMIT + 1)
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map(cut).map_err(|cause| anyhow!("{}: {cause}", path.display()))
}

/// The end of the log of a daemon in a pod. `before` selects an earlier container; 0 is the newest.
fn pod_log(places: &Places, before: usize) -> Result<String> {
    let path = daemon_logs(places).into_iter().nth(before);
    let path = path.with_context(|| {
        format!(
            "{}: no log of a flannel pod; with a kubeconfig, run kubectl -n kube-flannel logs [--previous] POD",
            places.pod_logs.display()
        )
    })?;
    let read = || -> io::Result<Vec<u8>> {
        let mut file = file::open(&behind(&path), OpenOptions::new().read(true), Links::Refused)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LIMIT)))?;
        let mut bytes = Vec::new();
        file.take(LIMIT).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map(cut).map_err(|cause| anyhow!("{}: {cause}", path.display()))
}

/// The target of kubelet's link if that is a log of Docker, or else the path itself.
fn behind(path: &Path) -> PathBuf {
    let target = std::fs::canonicalize(path).ok();
    target.filter(|target| target.starts_with(DOCKERS)).unwrap_or_else(|| path.to_owned())
}

async fn program(words: &[&str]) -> Result<String> {
    let line = words.join(" ");
    let (name, args) = words.split_first().unwrap_or((&"", &[]));
    // Variables of this process may contain secrets, so the program gets only PATH and a locale.
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    let mut command = Command::new(name);
    command.args(args).env_clear().env("PATH", path).env("LC_ALL", "C.UTF-8");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|cause| anyhow!("{line}: {cause}"))?;
    let (out, errors) = (child.stdout.take(), child.stderr.take());
    let run = async {
        let (out, errors) = tokio::join!(read(out), read(errors));
        // A program that still writes is killed when its handle is dropped.
        let code = tokio::time::timeout(Duration::from_secs(1), child.wait()).await;
        (out, errors, code.ok().and_then(Result::ok))
    };
    let (out, errors, code) = tokio::time::timeout(TIMEOUT, run)
        .await
        .map_err(|_| anyhow!("{line}: did not end within {TIMEOUT:?}"))?;
    let (out, errors) = (cut(out), cut(errors));
    match code {
        Some(status) if !status.success() && out.is_empty() => {
            bail!("{line}: {status}: {}", errors.trim())
        }
        _ if errors.trim().is_empty() => Ok(out),
        _ => Ok(format!("{out}\n--- on standard error:\n{errors}")),
    }
}

async fn read(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // The bytes before an error are kept.
        let _ = stream.take(LIMIT + 1).read_to_end(&mut bytes).await;
    }
    bytes
}

/// Truncated to [`LIMIT`] bytes.
fn cut(mut bytes: Vec<u8>) -> String {
    let limit = usize::try_from(LIMIT).unwrap_or(usize::MAX);
    let whole = bytes.len();
    bytes.truncate(limit);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    if whole > limit { format!("{text}\n--- cut off here\n") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn program_output_is_cut_and_missing_programs_are_reported() {
        assert_eq!(program(&["echo", "well"]).await.unwrap(), "well\n");
        assert!(
            program(&["no-such-program"])
                .await
                .unwrap_err()
                .to_string()
                .contains("no-such-program")
        );
        assert!(
            program(&["ls", "/no/such"]).await.unwrap_err().to_string().contains("No such file")
        );
        let flood = program(&["yes"]).await.unwrap();
        assert!(flood.len() < 5 << 20 && flood.contains("--- cut off here"), "{}", flood.len());
        // The program gets no variable of this process except PATH.
        let variables = program(&["env"]).await.unwrap();
        assert!(
            variables.lines().all(|line| line.starts_with("PATH=") || line.starts_with("LC_ALL=")),
            "{variables}"
        );
    }

    #[test]
    fn pod_log_is_read_from_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let places = Places { pod_logs: folder.path().into(), ..Places::default() };
        assert!(pod_log(&places, 0).unwrap_err().to_string().contains("no log of a flannel pod"));
        let log = folder.path().join("kube-flannel_kube-flannel-ds-abcde_0f/kube-flannel");
        std::fs::create_dir_all(&log).unwrap();
        std::fs::write(log.join("0.log"), "x".repeat(5 << 20) + "the end").unwrap();
        let before = std::time::SystemTime::now() - Duration::from_secs(60);
        std::fs::write(log.join("1.log"), "the last words").unwrap();
        let file = std::fs::File::options().append(true).open(log.join("1.log")).unwrap();
        file.set_modified(before).unwrap();
        assert_eq!(pod_log(&places, 1).unwrap(), "the last words");
        assert!(pod_log(&places, 2).is_err());
        let text = pod_log(&places, 0).unwrap();
        assert!(text.len() == 4 << 20 && text.ends_with("the end"), "{}", text.len());
    }

    #[tokio::test]
    async fn files_are_read_or_missing() {
        let folder = tempfile::tempdir().unwrap();
        let env = folder.path().join("subnet.env");
        std::fs::write(&env, "FLANNEL_MTU=1450\n").unwrap();
        let ask = async |source: Source| item(&Item { name: "x", source }, &env).await;
        assert_eq!(ask(Source::Suffixed("")).await.unwrap(), "FLANNEL_MTU=1450\n");
        assert!(
            ask(Source::Suffixed(".ended"))
                .await
                .unwrap_err()
                .to_string()
                .contains("subnet.env.ended")
        );
        assert!(ask(Source::Daemon("/status")).await.is_err());
        assert!(ask(Source::File("/dev/zero")).await.unwrap_err().to_string().contains("regular"));
    }
}

//! The programs that apply traffic rules: found, told apart, run with a deadline, and what they say.

use super::iptables_text::{others, remains};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::Mutex;

/// No program of these takes longer; `-w 5` waits for xtables' lock itself.
const DEADLINE: Duration = Duration::from_secs(12);
/// xtables' lock is one for both families: never do two processes of ours wait for it.
static XTABLES: Mutex<()> = Mutex::const_new(());

/// Why a program did not do what it should. The texts do not change while the reason does not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It is not installed, or cannot be run.
    #[error("cannot run {program}: {why}")]
    Missing {
        /// Its name.
        program: String,
        /// What the system said.
        why: String,
    },
    /// The system gives no process.
    #[error("cannot start {0}: the system gives no more processes; raise the limit (TasksMax of the unit, pids of the container)")]
    NoProcess(String),
    /// Somebody holds xtables' lock.
    #[error("{0} waited 5 s for the lock /run/xtables.lock, which another program holds (`fuser -v /run/xtables.lock` names it)")]
    Locked(String),
    /// It did not end.
    #[error("{0} did not end within {deadline} s", deadline = DEADLINE.as_secs())]
    Late(String),
    /// It refused.
    #[error("{0}")]
    Refused(String),
}

/// iptables' two back ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// On nf_tables.
    Nft,
    /// The old tables.
    Legacy,
}

impl std::fmt::Display for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Variant::Nft => "nf_tables",
            Variant::Legacy => "legacy",
        })
    }
}

/// The programs of one family and variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Iptables {
    /// Prints the rules.
    pub save: PathBuf,
    /// Replaces rules, a table in one commit.
    pub restore: PathBuf,
    /// Which back end they speak to.
    pub variant: Variant,
}

impl Iptables {
    fn named(command: &str, variant: Variant) -> Self {
        Self { save: format!("{command}-save").into(), restore: format!("{command}-restore").into(), variant }
    }

    /// The variants of which there are programs on this host; the one that `iptables` (`ip6tables`) names is marked.
    ///
    /// # Errors
    /// There is none, or it cannot be told.
    pub async fn installed(ipv6: bool) -> Result<Vec<(Self, bool)>, Failure> {
        let name = if ipv6 { "ip6tables" } else { "iptables" };
        let usual = async |command: &str| match run(Path::new(&format!("{command}-save")), &["--version"], None).await {
            Ok(version) => Ok(Ok(if version.contains("nf_tables") { Variant::Nft } else { Variant::Legacy })),
            Err(failure @ (Failure::NoProcess(_) | Failure::Late(_))) => Err(failure),
            Err(failure) => Ok(Err(failure)),
        };
        // Their own names stay the same programs when the system's choice is switched.
        let (nft_name, legacy_name) = (format!("{name}-nft"), format!("{name}-legacy"));
        let (system, nft, legacy) = tokio::join!(usual(name), usual(&nft_name), usual(&legacy_name));
        let system = system?;
        let mut found = Vec::new();
        for (variant, own, there) in [(Variant::Nft, &nft_name, nft?), (Variant::Legacy, &legacy_name, legacy?)] {
            let is_system = system.as_ref() == Ok(&variant);
            if there.is_ok() {
                found.push((Self::named(own, variant), is_system));
            } else if is_system {
                found.push((Self::named(name, variant), true));
            }
        }
        match system {
            Err(failure) if found.is_empty() => Err(failure),
            _ => Ok(found),
        }
    }

    /// The command that people type.
    pub fn command(&self) -> String {
        let save = self.save.to_string_lossy();
        save.strip_suffix("-save").unwrap_or(&save).to_owned()
    }

    /// What people call it.
    pub fn name(&self, ipv6: bool) -> String {
        format!("{} ({})", if ipv6 { "ip6tables" } else { "iptables" }, self.variant)
    }

    /// All rules of the family, with counts.
    ///
    /// # Errors
    /// What the program said.
    pub async fn saved(&self) -> Result<String, Failure> {
        run(&self.save, &["-c"], None).await
    }

    /// Gives the program a payload.
    ///
    /// # Errors
    /// What the program said.
    pub async fn give(&self, payload: &str) -> Result<(), Failure> {
        self.restore(&["--noflush", "-w", "5"], payload).await
    }

    /// Whether ports of masqueraded connections can be chosen at random: tried, and nothing is written.
    ///
    /// # Errors
    /// Why not.
    pub async fn probe(&self) -> Result<(), Failure> {
        let payload = "*nat\n:FLANNEL-PROBE - [0:0]\n-A FLANNEL-PROBE -j MASQUERADE --random-fully\nCOMMIT\n";
        self.restore(&["--test", "--noflush", "-w", "5"], payload).await
    }

    async fn restore(&self, args: &[&str], payload: &str) -> Result<(), Failure> {
        let _turn = if self.variant == Variant::Legacy { Some(XTABLES.lock().await) } else { None };
        run(&self.restore, args, Some(payload)).await.map(|_| ())
    }
}

/// Which variant is used, why, and what is to be warned of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Its place among the candidates.
    pub index: usize,
    /// Why this one.
    pub why: &'static str,
    /// Both variants hold rules of others.
    pub warning: Option<String>,
}

/// Picks among variants, given with what `iptables-save` says and whether the system's `iptables` is it.
pub fn pick(candidates: &[(Variant, &str, bool)]) -> Option<Pick> {
    let score = |(_, saved, system): &(Variant, &str, bool)| {
        let (chains, _) = others(saved);
        let has = |prefix: &str| chains.iter().any(|chain| chain.starts_with(prefix));
        (!remains(saved).is_empty(), has("KUBE-"), has("DOCKER"), *system)
    };
    let scores: Vec<_> = candidates.iter().map(score).collect();
    let (index, best) = scores.iter().enumerate().max_by_key(|(_, score)| **score)?;
    let rest: Vec<_> = scores.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, score)| *score).collect();
    let only = |is: fn(&(bool, bool, bool, bool)) -> bool| is(best) && !rest.iter().any(is);
    let why = if only(|score| score.0) {
        "flannel's rules are there"
    } else if only(|score| score.1) {
        "kube-proxy's or kubelet's rules are there"
    } else if only(|score| score.2) {
        "Docker's rules are there"
    } else if best.3 {
        "it is what iptables is on this host"
    } else {
        "it is the only one installed"
    };
    let filled: Vec<String> = candidates
        .iter()
        .filter_map(|(variant, saved, _)| {
            let (chains, rules) = others(saved);
            let some: Vec<&str> = chains.iter().copied().take(3).collect();
            let text = if some.is_empty() { format!("{variant}: {rules} rules") } else { format!("{variant}: {}", some.join(", ")) };
            (rules > 0).then_some(text)
        })
        .collect();
    let warning = (filled.len() > 1).then(|| {
        format!(
            "both variants of iptables hold rules of other programs ({}): every packet passes both; let all programs use one (`update-alternatives --config iptables`)",
            filled.join("; ")
        )
    });
    Some(Pick { index, why, warning })
}

/// The old tables that the kernel has here, whether or not a program can read them.
pub fn legacy_tables(ipv6: bool) -> Vec<String> {
    let file = if ipv6 { "/proc/thread-self/net/ip6_tables_names" } else { "/proc/thread-self/net/ip_tables_names" };
    std::fs::read_to_string(file).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// Gives nft a script; a bad line undoes all of it.
///
/// # Errors
/// What nft said.
pub async fn nft(script: &str) -> Result<(), Failure> {
    run(Path::new("nft"), &["-f", "-"], Some(script)).await.map(|_| ())
}

/// Whether nft and the kernel would take a script; nothing is written.
///
/// # Errors
/// Why not.
pub async fn nft_check(script: &str) -> Result<(), Failure> {
    run(Path::new("nft"), &["--check", "-f", "-"], Some(script)).await.map(|_| ())
}

/// What nft lists of a table; none where there is no such table.
///
/// # Errors
/// What nft said, or that there is no nft.
pub async fn nft_table(family: &str, name: &str) -> Result<Option<serde_json::Value>, Failure> {
    match run(Path::new("nft"), &["-j", "-a", "list", "table", family, name], None).await {
        Ok(text) => serde_json::from_str(&text).map(Some).map_err(|error| Failure::Refused(format!("nft -j printed what is no JSON: {error}"))),
        Err(Failure::Refused(why)) if why.contains("No such file or directory") => Ok(None),
        Err(why) => Err(why),
    }
}

/// Runs a program without a shell and with a deadline; its output.
///
/// # Errors
/// What it complained of, or that there is none.
pub async fn run(program: &Path, args: &[&str], input: Option<&str>) -> Result<String, Failure> {
    let name = format!("{} {}", program.display(), args.join(" ")).trim_end().to_owned();
    let mut command = Command::new(program);
    command.args(args).stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).env("LC_ALL", "C");
    let work = async {
        let mut child = command.spawn().map_err(|error| match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOMEM) => Failure::NoProcess(program.display().to_string()),
            _ => Failure::Missing { program: program.display().to_string(), why: error.to_string() },
        })?;
        if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
            // A program that ends early closes the pipe; its own complaint says more.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        let output = child.wait_with_output().await.map_err(|error| Failure::Refused(format!("{name}: {error}")))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let complaint = String::from_utf8_lossy(&output.stderr);
        if complaint.contains("xtables lock") {
            return Err(Failure::Locked(program.display().to_string()));
        }
        Err(Failure::Refused(format!("{name} ended with {}: {}", output.status, complaint.trim())))
    };
    match tokio::time::timeout(DEADLINE, work).await {
        Ok(result) => result,
        Err(_) => Err(Failure::Late(name.clone())),
    }
}

//! Finds the iptables programs, chooses the variant nft or legacy, and runs iptables and nft with a deadline.

pub use super::error::ProgramError;
use super::iptables_text::{self, lists, others};
use super::kernel_listing::chains;
use super::nftables_text;
use super::rules::{OtherDaemons, TABLES};
use super::words;
pub use crate::variant::Variant;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::sync::Mutex;
use types::{Errno, Family};

/// The limit of one call. iptables-restore waits up to 5 s for the xtables lock (`-w 5`), and the
/// rules of 10 000 Services take half a second of processor time.
const DEADLINE: Duration = Duration::from_secs(30);
/// In bytes, of a program's output. The rules of 10 000 Services have about 20 MB.
const OUTPUT: u64 = 64 << 20;

static SEARCHES_SBIN: AtomicBool = AtomicBool::new(false);

/// Searches programs also in the folders that the PATH of a plain `su` lacks.
pub fn search_sbin() {
    SEARCHES_SBIN.store(true, Ordering::Relaxed);
}

/// Calls of legacy iptables-restore and ip6tables-restore share the xtables lock. Only one child
/// process of this daemon waits for it at a time.
static XTABLES: Mutex<()> = Mutex::const_new(());

/// The programs of one IP family and one variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Iptables {
    pub family: Family,
    /// Prints the rules, such as iptables-save.
    pub save: PathBuf,
    /// Replaces rules, such as iptables-restore. It commits each table separately.
    pub restore: PathBuf,
    pub variant: Variant,
}

impl Iptables {
    fn named(family: Family, command: &str, variant: Variant) -> Self {
        Self {
            family,
            save: format!("{command}-save").into(),
            restore: format!("{command}-restore").into(),
            variant,
        }
    }

    /// The flag marks the variant that the command `iptables` (`ip6tables`) runs on this host.
    /// Fails if no variant is installed.
    pub async fn installed(family: Family) -> Result<Vec<(Self, bool)>, ProgramError> {
        let name = family.pick("iptables", "ip6tables");
        let variant_of = async |command: &str| {
            let save = format!("{command}-save");
            let version = run(Path::new(&save), &["--version"], None).await?;
            Ok(words::variant(&version))
        };
        let is_unclear = |failure: &ProgramError| {
            matches!(failure, ProgramError::NoProcess { .. } | ProgramError::TimedOut { .. })
        };
        // The names with a suffix stay valid when the system default is switched.
        let names = [(Variant::Nft, "nft"), (Variant::Legacy, "legacy")]
            .map(|(variant, suffix)| (variant, format!("{name}-{suffix}")));
        let system = variant_of(name).await;
        let mut found = Vec::new();
        for (variant, own) in names {
            let is_system = system.as_ref() == Ok(&variant);
            match variant_of(&own).await {
                Ok(_) => found.push((Self::named(family, &own, variant), is_system)),
                Err(failure) if is_unclear(&failure) => return Err(failure),
                Err(_) if is_system => found.push((Self::named(family, name, variant), true)),
                Err(_) => {}
            }
        }
        match system {
            Err(failure) if found.is_empty() || is_unclear(&failure) => Err(failure),
            _ => Ok(found),
        }
    }

    /// The path of the `iptables` command of this variant, for messages.
    #[must_use]
    pub fn command(&self) -> String {
        let save = self.save.to_string_lossy();
        save.strip_suffix("-save").unwrap_or(&save).to_owned()
    }

    /// The command's name and the variant, for log lines.
    #[must_use]
    pub fn name(&self) -> String {
        let name = self.family.pick("iptables", "ip6tables");
        format!("{name} ({})", self.variant)
    }

    /// Lists flannel's chains of a slot, or of all slots, the built-in chains that may jump to them,
    /// and the names of the other chains, as `iptables-save -c` prints them. iptables-nft-save needs
    /// seconds of processor time for the rules of thousands of Services.
    pub(crate) async fn list(&self, slot: Option<u16>) -> Result<String, ProgramError> {
        if self.variant == Variant::Legacy {
            // Each call of the legacy variant reads whole tables.
            return self.dump_tables(&TABLES).await;
        }
        let mut present = self.chains_in_kernel()?;
        'listing: loop {
            let mut saved = String::new();
            for table in TABLES {
                let of_table: Vec<_> = present.iter().filter(|(of, _)| of == table).collect();
                if of_table.is_empty() {
                    continue;
                }
                saved.push_str(&format!("*{table}\n"));
                for place @ (_, chain) in of_table {
                    let own = iptables_text::slot_of_chain(table, chain);
                    let is_read = own.is_some_and(|own| slot.is_none_or(|slot| slot == own))
                        || iptables_text::is_hook(table, chain);
                    if !is_read {
                        saved.push_str(&format!(":{chain} - [0:0]\n"));
                        continue;
                    }
                    match self.list_chain(table, chain).await {
                        Ok(lines) => saved.push_str(&lines),
                        Err(error) => {
                            // Other programs may remove chains at any time.
                            let now = self.chains_in_kernel()?;
                            if now.contains(place) {
                                return Err(error);
                            }
                            present = now;
                            continue 'listing;
                        }
                    }
                }
                saved.push_str("COMMIT\n");
            }
            return Ok(saved);
        }
    }

    /// Fails if the output lacks the chain.
    async fn list_chain(&self, table: &str, chain: &str) -> Result<String, ProgramError> {
        let command = self.command();
        let args = ["-v", "-t", table, "-S", chain];
        let reason = match run(Path::new(&command), &args, None).await {
            Ok(output) => {
                let lines = iptables_text::as_saved(&output);
                if lines.lines().any(|line| line.starts_with(&format!(":{chain} "))) {
                    return Ok(lines);
                }
                String::new()
            }
            // The kernel has the chain. iptables fails if it cannot read a rule of nft there.
            Err(ProgramError::Refused { words, .. }) => format!(" ({words})"),
            Err(error) => return Err(error),
        };
        let family = nftables_text::table_of(self.family, 0).0;
        Err(ProgramError::Unusable {
            command,
            why: format!(
                "it lacks table {table}, chain {chain}{reason}; move rules of nft to a table of their own (`nft -a list table {family} {table}`)"
            ),
        })
    }

    /// Lists the given tables. In a cluster with many Services, most rules are in the table `nat`.
    /// The legacy variant lists all tables, because legacy iptables-save creates a table that its
    /// arguments name. Fails if the output lacks a table that the kernel has.
    pub async fn dump_tables(&self, tables: &[&str]) -> Result<String, ProgramError> {
        let present = self.chains_in_kernel()?;
        let mut all = String::new();
        if self.variant == Variant::Legacy {
            all = run(&self.save, &["-c"], None).await?;
        } else {
            for table in tables {
                all.push_str(&run(&self.save, &["-c", "-t", table], None).await?);
            }
        }
        let mut expected = tables.iter().filter(|table| present.iter().any(|(of, _)| of == *table));
        match expected.find(|table| !lists(&all, table)) {
            None => Ok(all),
            Some(table) => Err(ProgramError::Unusable {
                command: self.save.display().to_string(),
                why: format!("it lacks table {table}"),
            }),
        }
    }

    /// Each with its table. Ask the kernel, because iptables-save exits with code 0 although it
    /// cannot list a table that contains rules of nft. The kernel lists no chains of the legacy
    /// variant.
    fn chains_in_kernel(&self) -> Result<Vec<(String, String)>, ProgramError> {
        let found = match self.variant {
            Variant::Nft => chains(self.family).map_err(|error| error.to_string()),
            Variant::Legacy => legacy_tables(self.family)
                .map(|tables| tables.into_iter().map(|table| (table, String::new())).collect())
                .map_err(|error| error.to_string()),
        };
        // The programs ask the kernel in the same way, so a listing without this answer is none.
        found.map_err(|why| ProgramError::Unusable {
            command: self.save.display().to_string(),
            why: format!("the kernel does not tell its tables: {why}"),
        })
    }

    /// Calls iptables-restore, which keeps all other chains.
    pub async fn apply(&self, payload: &str) -> Result<(), ProgramError> {
        self.restore(&["--noflush", "-w", "5"], payload).await
    }

    /// Tests whether iptables and the kernel support random ports for masqueraded connections.
    /// Writes no rules.
    pub async fn probe(&self) -> Result<(), ProgramError> {
        let payload =
            "*nat\n:FLANNEL-PROBE - [0:0]\n-A FLANNEL-PROBE -j MASQUERADE --random-fully\nCOMMIT\n";
        self.restore(&["--test", "--noflush", "-w", "5"], payload).await
    }

    async fn restore(&self, args: &[&str], payload: &str) -> Result<(), ProgramError> {
        let _lock = if self.variant == Variant::Legacy { Some(XTABLES.lock().await) } else { None };
        run(&self.restore, args, Some(payload)).await.map(|_| ())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The position of the chosen variant among the candidates.
    pub index: usize,
    pub why: &'static str,
    /// Other programs have rules in both variants of iptables.
    pub warning: Option<String>,
}

/// Each candidate is a variant, the output of its `iptables-save`, and whether it is the system
/// default.
#[must_use]
pub fn pick(candidates: &[(Variant, &str, bool)]) -> Option<Pick> {
    let nobody = OtherDaemons::default();
    let score = |(_, saved, system): &(Variant, &str, bool)| {
        let (chains, _) = others(saved);
        let has = |prefix: &str| chains.iter().any(|chain| chain.starts_with(prefix));
        [
            iptables_text::removal(saved, &nobody, None).is_some(),
            has("KUBE-"),
            has("DOCKER"),
            *system,
        ]
    };
    let scores: Vec<_> = candidates.iter().map(score).collect();
    let (index, best) = scores.iter().enumerate().max_by_key(|(_, score)| **score)?;
    let reasons = [
        "it holds flannel's rules",
        "it holds rules of kube-proxy or kubelet",
        "it holds Docker's rules",
        "it is the default on this host",
    ];
    let is_only = |at: usize| {
        let having = scores.iter().filter(|score| score.get(at) == Some(&true));
        best.get(at) == Some(&true) && having.count() == 1
    };
    let why = (0..).zip(reasons).find(|(at, _)| is_only(*at));
    let why = why.map_or("it is the only installed variant", |(_, why)| why);
    let filled: Vec<String> = candidates
        .iter()
        .filter_map(|(variant, saved, _)| {
            let (chains, rules) = others(saved);
            let some: Vec<&str> = chains.iter().copied().take(3).collect();
            let text = if some.is_empty() {
                format!("{variant}: {rules} rules")
            } else {
                format!("{variant}: {}", some.join(", "))
            };
            (rules > 0).then_some(text)
        })
        .collect();
    let warning = (filled.len() > 1).then(|| {
        format!(
            "both variants of iptables hold rules of other programs ({}), and every packet passes both variants; configure all programs to use the same variant (`update-alternatives --config iptables`)",
            filled.join("; ")
        )
    });
    Some(Pick { index, why, warning })
}

/// The tables in the kernel, even if no installed program can list them.
pub(crate) fn legacy_tables(family: Family) -> io::Result<Vec<String>> {
    let file = family
        .pick("/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names");
    match std::fs::read_to_string(file) {
        Ok(names) => Ok(names.split_whitespace().map(str::to_owned).collect()),
        // The kernel module is not loaded.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// As one transaction.
pub async fn nft(script: &str) -> Result<(), ProgramError> {
    run(Path::new("nft"), &["-f", "-"], Some(script)).await.map(|_| ())
}

/// Writes no rules.
pub(crate) async fn nft_check(script: &str) -> Result<(), ProgramError> {
    run(Path::new("nft"), &["--check", "-f", "-"], Some(script)).await.map(|_| ())
}

/// `None` if the table does not exist.
pub async fn nft_table(
    family: &str,
    name: &str,
) -> Result<Option<serde_json::Value>, ProgramError> {
    match run(Path::new("nft"), &["-j", "-a", "list", "table", family, name], None).await {
        Ok(text) => {
            let unusable =
                |why: String| ProgramError::Unusable { command: "nft -j".to_owned(), why };
            let listing =
                serde_json::from_str(&text).map_err(|error| unusable(error.to_string()))?;
            if nftables_text::items(&listing, "table").next().is_none() {
                return Err(unusable(format!("it lacks table {family} {name}")));
            }
            Ok(Some(listing))
        }
        Err(ProgramError::NotFound { .. }) => Ok(None),
        Err(why) => Err(why),
    }
}

/// There is no shell, but a deadline. The result is the standard output.
pub async fn run(
    program: &Path,
    args: &[&str],
    input: Option<&str>,
) -> Result<String, ProgramError> {
    run_within(DEADLINE, program, args, input).await
}

async fn run_within(
    deadline: Duration,
    program: &Path,
    args: &[&str],
    input: Option<&str>,
) -> Result<String, ProgramError> {
    let name = format!("{} {}", program.display(), args.join(" ")).trim_end().to_owned();
    let mut command = Command::new(program);
    command.args(args).stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).env("LC_ALL", "C");
    if SEARCHES_SBIN.load(Ordering::Relaxed) {
        let mut path = std::env::var_os("PATH").unwrap_or_default();
        path.push(":/usr/local/sbin:/usr/sbin:/sbin");
        command.env("PATH", path);
    }
    let work = async {
        let mut child = command.spawn().map_err(|error| match Errno::from(error) {
            Errno(libc::EAGAIN | libc::ENOMEM) => {
                ProgramError::NoProcess { program: program.display().to_string() }
            }
            errno => {
                ProgramError::Missing { program: program.display().to_string(), errno: Some(errno) }
            }
        })?;
        let stdin = child.stdin.take();
        let write = async {
            if let (Some(input), Some(mut stdin)) = (input, stdin) {
                // A program that exits early closes the pipe. Its own error message is more useful.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
            Ok(())
        };
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let output = tokio::try_join!(write, read_limited(out), read_limited(err));
        let lost =
            |error: io::Error| ProgramError::Lost { command: name.clone(), errno: error.into() };
        let ((), out, err) = output.map_err(lost)?;
        let status = child.wait().await.map_err(lost)?;
        if status.success() {
            return Ok(String::from_utf8_lossy(&out).into_owned());
        }
        Err(words::failure(
            &program.display().to_string(),
            name.clone(),
            status,
            &String::from_utf8_lossy(&err),
        ))
    };
    tokio::time::timeout(deadline, work).await.unwrap_or_else(|_| {
        Err(ProgramError::TimedOut { command: name.clone(), seconds: deadline.as_secs() })
    })
}

/// Fails if the output exceeds the limit.
async fn read_limited(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(OUTPUT).read_to_end(&mut bytes).await?;
    }
    if bytes.len() as u64 == OUTPUT {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn program_that_hangs_ends_at_the_deadline() {
        let deadline = Duration::from_millis(100);
        let asleep = run_within(deadline, Path::new("sleep"), &["60"], None).await;
        assert!(matches!(asleep, Err(ProgramError::TimedOut { .. })));
    }
}

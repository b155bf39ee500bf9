//! Finds the iptables programs, chooses the variant nft or legacy, and runs iptables and nft with a deadline.

pub use super::error::ProgramError;
use super::iptables_text::{self, lists_table, others};
use super::nftables_text;
use super::notices::list_chains;
use super::rules::{OtherDaemons, TABLES};
use crate::error::XTABLES_LOCK;
pub use crate::variant::Variant;
use std::fmt::Display;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
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
    pub(crate) family: Family,
    /// The name or the path of `iptables`. The names of its companions begin with it.
    pub command: String,
    pub variant: Variant,
}

impl Iptables {
    /// The flag marks the variant that the command `iptables` (`ip6tables`) runs on this host.
    /// Fails if no variant is installed.
    pub async fn installed(family: Family) -> Result<Vec<(Self, bool)>, ProgramError> {
        let name = family.pick("iptables", "ip6tables");
        let is_unclear = |failure: &ProgramError| {
            matches!(failure, ProgramError::NoProcess { .. } | ProgramError::TimedOut { .. })
        };
        let system = variant_of(name).await;
        let mut found = Vec::new();
        // The names with a suffix stay valid when the system default is switched.
        for (variant, suffix) in [(Variant::Nft, "nft"), (Variant::Legacy, "legacy")] {
            let own = format!("{name}-{suffix}");
            let is_system = system.as_ref() == Ok(&variant);
            let command = match variant_of(&own).await {
                Ok(_) => own,
                Err(failure) if is_unclear(&failure) => return Err(failure),
                Err(_) if is_system => name.to_owned(),
                Err(_) => continue,
            };
            found.push((Self { family, command, variant }, is_system));
        }
        match system {
            Err(failure) if found.is_empty() || is_unclear(&failure) => Err(failure),
            _ => Ok(found),
        }
    }

    /// The program that prints the rules.
    fn save(&self) -> String {
        format!("{}-save", self.command)
    }

    /// The program that replaces rules. It commits each table separately.
    pub(crate) fn restore(&self) -> String {
        format!("{}-restore", self.command)
    }

    /// The command's name and the variant, for log lines.
    pub(crate) fn name(&self) -> String {
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
        let args = ["-v", "-t", table, "-S", chain];
        let reason = match run_program(&self.command, &args, None).await {
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
            command: self.command.clone(),
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
            all = run_program(&self.save(), &["-c"], None).await?;
        } else {
            for table in tables {
                all.push_str(&run_program(&self.save(), &["-c", "-t", table], None).await?);
            }
        }
        let mut expected = tables.iter().filter(|table| present.iter().any(|(of, _)| of == *table));
        match expected.find(|table| !lists_table(&all, table)) {
            None => Ok(all),
            Some(table) => Err(ProgramError::Unusable {
                command: self.save(),
                why: format!("it lacks table {table}"),
            }),
        }
    }

    /// Each with its table. Ask the kernel, because iptables-save exits with code 0 although it
    /// cannot list a table that contains rules of nft. The kernel lists no chains of the legacy
    /// variant.
    fn chains_in_kernel(&self) -> Result<Vec<(String, String)>, ProgramError> {
        match self.variant {
            Variant::Nft => {
                list_chains(self.family).map_err(|error| no_tables(self.save(), &error))
            }
            Variant::Legacy => legacy_tables(self.family)
                .map(|tables| tables.into_iter().map(|table| (table, String::new())).collect())
                .map_err(|error| no_tables(self.save(), &error)),
        }
    }

    /// Calls iptables-restore, which keeps all other chains.
    pub(crate) async fn apply(&self, payload: &str) -> Result<(), ProgramError> {
        self.run_restore(&["--noflush", "-w", "5"], payload).await
    }

    /// Tests whether iptables and the kernel support random ports for masqueraded connections.
    /// Writes no rules.
    pub(crate) async fn probe(&self) -> Result<(), ProgramError> {
        let payload =
            "*nat\n:FLANNEL-PROBE - [0:0]\n-A FLANNEL-PROBE -j MASQUERADE --random-fully\nCOMMIT\n";
        self.run_restore(&["--test", "--noflush", "-w", "5"], payload).await
    }

    async fn run_restore(&self, args: &[&str], payload: &str) -> Result<(), ProgramError> {
        let _lock = if self.variant == Variant::Legacy { Some(XTABLES.lock().await) } else { None };
        run_program(&self.restore(), args, Some(payload)).await.map(drop)
    }
}

/// The variant of a command such as `iptables`.
async fn variant_of(command: &str) -> Result<Variant, ProgramError> {
    let version = run_program(&format!("{command}-save"), &["--version"], None).await?;
    Ok(if version.contains("nf_tables") { Variant::Nft } else { Variant::Legacy })
}

/// The programs ask the kernel in the same way, so a listing without the kernel's answer is none.
pub(crate) fn no_tables(command: String, error: &impl Display) -> ProgramError {
    ProgramError::Unusable { command, why: format!("the kernel does not tell its tables: {error}") }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    /// The position of the chosen variant among the candidates.
    pub index: usize,
    pub why: &'static str,
    /// Other programs have rules in both variants of iptables.
    pub warning: Option<String>,
}

/// Each candidate has the output of its `iptables-save`, and whether it is the system default.
pub(crate) fn pick_variant(candidates: &[(Iptables, String, bool)]) -> Option<Pick> {
    let nobody = OtherDaemons::default();
    let (mut scores, mut filled) = (Vec::new(), Vec::new());
    for (Iptables { variant, .. }, saved, is_system) in candidates {
        let (chains, rules) = others(saved);
        let has = |prefix: &str| chains.iter().any(|chain| chain.starts_with(prefix));
        let has_ours = iptables_text::removal(saved, &nobody, None).is_some();
        scores.push([has_ours, has("KUBE-"), has("DOCKER"), *is_system]);
        match chains.get(..chains.len().min(3)) {
            _ if rules == 0 => {}
            Some(some @ [_, ..]) => filled.push(format!("{variant}: {}", some.join(", "))),
            _ => filled.push(format!("{variant}: {rules} rules")),
        }
    }
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
pub(crate) async fn nft(script: &str) -> Result<(), ProgramError> {
    run_program("nft", &["-f", "-"], Some(script)).await.map(drop)
}

/// Writes no rules.
pub(crate) async fn nft_check(script: &str) -> Result<(), ProgramError> {
    run_program("nft", &["--check", "-f", "-"], Some(script)).await.map(drop)
}

/// `None` if the table does not exist.
pub async fn nft_table(
    family: &str,
    name: &str,
) -> Result<Option<serde_json::Value>, ProgramError> {
    let text = match run_program("nft", &["-j", "-a", "list", "table", family, name], None).await {
        Err(ProgramError::NotFound { .. }) => return Ok(None),
        text => text?,
    };
    let unusable = |why: String| ProgramError::Unusable { command: "nft -j".to_owned(), why };
    let listing = serde_json::from_str(&text).map_err(|error| unusable(error.to_string()))?;
    if nftables_text::items(&listing, "table").next().is_none() {
        return Err(unusable(format!("it lacks table {family} {name}")));
    }
    Ok(Some(listing))
}

/// There is no shell, but a deadline. The result is the standard output.
pub async fn run_program(
    program: &str,
    args: &[&str],
    input: Option<&str>,
) -> Result<String, ProgramError> {
    let line = format!("{program} {}", args.join(" "));
    let mut command = Command::new(program);
    command.args(args).stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).env("LC_ALL", "C");
    if SEARCHES_SBIN.load(Ordering::Relaxed) {
        let mut path = std::env::var_os("PATH").unwrap_or_default();
        path.push(":/usr/local/sbin:/usr/sbin:/sbin");
        command.env("PATH", path);
    }
    let lost = |error: io::Error| ProgramError::Lost { command: line.clone(), errno: error.into() };
    let work = async {
        let mut child = command.spawn().map_err(|error| {
            let program = program.to_owned();
            match Errno::from(error) {
                Errno(libc::EAGAIN | libc::ENOMEM) => ProgramError::NoProcess { program },
                errno => ProgramError::Missing { program, errno },
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
        let ((), out, err) =
            tokio::try_join!(write, read_limited(out), read_limited(err)).map_err(lost)?;
        let status = child.wait().await.map_err(lost)?;
        if status.success() {
            Ok(out)
        } else {
            Err(failure_of(program, line.clone(), status, &err))
        }
    };
    tokio::time::timeout(DEADLINE, work).await.unwrap_or_else(|_| {
        Err(ProgramError::TimedOut { command: line.clone(), seconds: DEADLINE.as_secs() })
    })
}

/// Fails if the output exceeds the limit.
async fn read_limited(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<String> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(OUTPUT).read_to_end(&mut bytes).await?;
    }
    if bytes.len() as u64 == OUTPUT {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Finds the reason in the error output in the C locale, because the exit codes of iptables and nft
/// do not distinguish the causes.
fn failure_of(program: &str, command: String, status: ExitStatus, words: &str) -> ProgramError {
    let words = words.trim().to_owned();
    if words.contains("xtables lock") {
        ProgramError::Locked {
            program: program.to_owned(),
            holder: lock_holder(Path::new(XTABLES_LOCK)).unwrap_or_else(|| {
                format!("another program (find it with `fuser -v {XTABLES_LOCK}`)")
            }),
        }
    } else if program == "nft" && words.contains("No such file or directory") {
        ProgramError::NotFound { command, status, words }
    } else {
        ProgramError::Refused { command, status, words }
    }
}

/// The process that holds a lock of flock(2) on a file, as the kernel shows it to this process.
fn lock_holder(file: &Path) -> Option<String> {
    let inode = file.metadata().ok()?.ino().to_string();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let pid = locks.lines().find_map(|line| {
        let [_, "FLOCK", _, _, pid, place, ..] = *line.split_whitespace().collect::<Vec<_>>()
        else {
            return None;
        };
        (place.rsplit(':').next() == Some(&inode)).then_some(pid)
    })?;
    let process = Path::new("/proc").join(pid);
    let user = process.metadata().ok()?.uid();
    let program = std::fs::read_to_string(process.join("comm")).ok()?;
    Some(format!("{:?} (pid {pid}, user {user})", program.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use types::{Coded, Detail};

    #[tokio::test(start_paused = true)]
    async fn program_that_hangs_ends_at_the_deadline() {
        let asleep = run_program("sleep", &["60"], None).await;
        assert!(matches!(asleep, Err(ProgramError::TimedOut { .. })));
    }

    #[test]
    fn holder_of_a_lock_is_named() {
        let path = std::env::temp_dir().join(format!("flannel-lock-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        assert_eq!(lock_holder(&path), None);
        file.lock().unwrap();
        let holder = lock_holder(&path).unwrap();
        let user = nix::unistd::getuid();
        let expected = format!("(pid {}, user {user})", std::process::id());
        assert!(holder.ends_with(&expected), "{holder}");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn failure_is_known_by_the_words_of_the_program() {
        let failed = |program: &str, words: &str| {
            failure_of(program, format!("{program} x"), ExitStatus::from_raw(4 << 8), words)
        };
        let lock = "Another app is currently holding the xtables lock; still 1s 0us time ahead to have a chance to grab the lock...\n";
        let locked = failed("iptables-legacy-restore", lock);
        assert_eq!(
            (locked.code(), locked.detail()),
            ("rules-locked", Detail::RulesLocked { file: "/run/xtables.lock".into() })
        );
        let absent = "Error: No such file or directory\nlist table ip nat\n              ^^^\n";
        assert_eq!(failed("nft", absent).code(), "rules-object-missing");
        // iptables prints this for a match or target that the kernel lacks.
        assert_eq!(failed("iptables-restore", absent).code(), "rules-refused");
        let refused = failed("nft", "Error: Could not process rule: Operation not supported\n");
        assert_eq!(refused.code(), "rules-refused");
        assert_eq!(
            refused.to_string(),
            "nft x failed with exit status: 4: Error: Could not process rule: Operation not supported"
        );
    }
}

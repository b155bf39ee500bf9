//! The programs that apply traffic rules: found, told apart, run with a deadline, and what they say.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// No program of these takes longer; `-w 5` waits for xtables' lock itself.
const DEADLINE: Duration = Duration::from_secs(12);

/// iptables' two back ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// On nf_tables.
    Nft,
    /// The old tables.
    Legacy,
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
    /// The programs that `iptables` (`ip6tables`) names on this host, whatever their variant.
    pub fn usual(ipv6: bool) -> Self {
        let name = if ipv6 { "ip6tables" } else { "iptables" };
        Self { save: format!("{name}-save").into(), restore: format!("{name}-restore").into(), variant: Variant::Nft }
    }

    /// The same, with the variant found out.
    ///
    /// # Errors
    /// The program is missing.
    pub async fn find(ipv6: bool) -> Result<Self, String> {
        let programs = Self::usual(ipv6);
        let version = run(&programs.save, &["--version"], None).await?;
        let variant = if version.contains("nf_tables") { Variant::Nft } else { Variant::Legacy };
        Ok(Self { variant, ..programs })
    }

    /// The programs of the other variant, where they are installed under their own names.
    pub async fn other(ipv6: bool, than: Option<Variant>) -> Vec<Self> {
        let name = if ipv6 { "ip6tables" } else { "iptables" };
        let mut found = Vec::new();
        for (variant, infix) in [(Variant::Nft, "nft"), (Variant::Legacy, "legacy")] {
            let save = PathBuf::from(format!("{name}-{infix}-save"));
            if Some(variant) != than && run(&save, &["--version"], None).await.is_ok() {
                found.push(Self { save, restore: format!("{name}-{infix}-restore").into(), variant });
            }
        }
        found
    }

    /// What people call it.
    pub fn name(&self, ipv6: bool) -> String {
        let variant = match self.variant {
            Variant::Nft => "nf_tables",
            Variant::Legacy => "legacy",
        };
        format!("{} ({variant})", if ipv6 { "ip6tables" } else { "iptables" })
    }

    /// All rules of the family.
    ///
    /// # Errors
    /// What the program said.
    pub async fn saved(&self) -> Result<String, String> {
        run(&self.save, &[], None).await
    }

    /// Gives the program a payload.
    ///
    /// # Errors
    /// What the program said.
    pub async fn give(&self, payload: &str) -> Result<(), String> {
        run(&self.restore, &["--noflush", "-w", "5"], Some(payload)).await.map(|_| ())
    }
}

/// Gives nft a script; a bad line undoes all of it.
///
/// # Errors
/// What nft said.
pub async fn nft(script: &str) -> Result<(), String> {
    run(&PathBuf::from("nft"), &["-f", "-"], Some(script)).await.map(|_| ())
}

/// What nft lists of a table; none where there is no such table.
///
/// # Errors
/// What nft said, or that there is no nft.
pub async fn nft_table(family: &str, name: &str) -> Result<Option<serde_json::Value>, String> {
    match run(&PathBuf::from("nft"), &["-j", "list", "table", family, name], None).await {
        Ok(text) => serde_json::from_str(&text).map(Some).map_err(|error| format!("nft -j printed what is no JSON: {error}")),
        Err(why) if why.contains("No such file or directory") && !why.contains("cannot run") => Ok(None),
        Err(why) => Err(why),
    }
}

/// Runs a program; its output, or what it complained of.
async fn run(program: &PathBuf, args: &[&str], input: Option<&str>) -> Result<String, String> {
    let name = format!("{} {}", program.display(), args.join(" ")).trim_end().to_owned();
    let mut command = Command::new(program);
    command.args(args).stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).env("LC_ALL", "C");
    let work = async {
        let mut child = command.spawn().map_err(|error| format!("cannot run {name}: {error}"))?;
        if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
            // A program that ends early closes the pipe; its own complaint says more.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        let output = child.wait_with_output().await.map_err(|error| format!("{name}: {error}"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let complaint = String::from_utf8_lossy(&output.stderr);
        Err(format!("{name} ended with {}: {}", output.status, complaint.trim()))
    };
    match tokio::time::timeout(DEADLINE, work).await {
        Ok(result) => result,
        Err(_) => Err(format!("{name} did not end within {} s", DEADLINE.as_secs())),
    }
}

//! Errors of reading and writing traffic rules.

use std::path::PathBuf;
use std::process::ExitStatus;
use thiserror::Error;
use types::{Coded, Detail, Errno, Problem};

/// The lock of the iptables programs.
pub(crate) const XTABLES_LOCK: &str = "/run/xtables.lock";

/// The text changes only if the reason changes.
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum ProgramError {
    #[error("cannot run {program}: {errno}")]
    #[code("program-missing")]
    #[detail(Detail::ProgramMissing { program: program.clone() })]
    Missing { program: String, errno: Errno },
    #[error(
        "cannot start {program}: the system allows no more processes; raise the limit (TasksMax of the unit, pids of the container)"
    )]
    #[code("processes-exhausted")]
    NoProcess { program: String },
    /// `holder` is the process with its program and user, or how to find it.
    #[error("{program} timed out after 5 s waiting for {XTABLES_LOCK}, which {holder} holds")]
    #[code("rules-locked")]
    #[detail(Detail::RulesLocked { file: PathBuf::from(XTABLES_LOCK) })]
    Locked { program: String, holder: String },
    #[error("{command} did not finish within {seconds} s")]
    #[code("program-silent")]
    TimedOut { command: String, seconds: u64 },
    /// The kernel lacks an object that the command names, or a feature that it needs.
    #[error("{command} failed with {status}: {words}")]
    #[code("rules-object-missing")]
    NotFound { command: String, status: ExitStatus, words: String },
    #[error("{command} failed with {status}: {words}")]
    #[code("rules-refused")]
    Refused { command: String, status: ExitStatus, words: String },
    /// The daemon could not read the exit status.
    #[error("{command}: {errno}")]
    #[code("program-lost")]
    Lost { command: String, errno: Errno },
    /// The output is no complete listing.
    #[error("cannot use the output of {command}: {why}")]
    #[code("program-output-unusable")]
    Unusable { command: String, why: String },
    #[error(
        "{program} reported success, but the rules that it wrote are not in the next listing; check the program and whether another program removes the rules"
    )]
    #[code("rules-without-effect")]
    WithoutEffect { program: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum RulesError {
    #[error("{error}{}", package_to_install(error))]
    #[code(of = error)]
    Program {
        #[from]
        error: ProgramError,
    },
    /// All other rules are in place.
    #[error(
        "cannot install the rules that guard the encapsulation port; the other rules are in place: {error}"
    )]
    #[code("tunnel-unguarded")]
    #[detail(error.detail())]
    #[parts(vec![Problem::of(error)])]
    Unguarded {
        #[source]
        error: ProgramError,
    },
}

fn package_to_install(error: &ProgramError) -> &'static str {
    match error {
        ProgramError::Missing { program, .. } if program == "nft" => {
            "; install the package nftables"
        }
        ProgramError::Missing { .. } => "; install the package iptables or nftables",
        _ => "",
    }
}

/// What the errors of all families amount to; `None` without errors.
#[must_use]
pub fn problem_of(mut errors: Vec<RulesError>) -> Option<Problem> {
    errors.dedup();
    let mut parts: Vec<Problem> = errors.iter().map(Problem::of).collect();
    if parts.len() < 2 {
        return parts.pop();
    }
    let text = parts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    Some(Problem { parts, ..Problem::new("rules-not-in-place", text) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(program: &str) -> RulesError {
        let program = program.to_owned();
        ProgramError::Missing { program, errno: Errno(libc::ENOENT) }.into()
    }

    #[test]
    fn failures_of_both_families_are_one_problem() {
        assert_eq!(problem_of(Vec::new()), None);
        let one = problem_of(vec![missing("nft"), missing("nft")]).unwrap();
        assert_eq!(
            (one.code.as_ref(), one.detail.clone()),
            ("program-missing", Detail::ProgramMissing { program: "nft".to_owned() })
        );
        let locked = RulesError::from(ProgramError::Locked {
            program: "iptables-legacy-restore".to_owned(),
            holder: "another program".to_owned(),
        });
        let both = problem_of(vec![missing("iptables-save"), locked.clone()]).unwrap();
        let lock = Detail::RulesLocked { file: "/run/xtables.lock".into() };
        assert_eq!(
            both.details().cloned().collect::<Vec<_>>(),
            [Detail::ProgramMissing { program: "iptables-save".to_owned() }, lock]
        );
        let first = "cannot run iptables-save: No such file or directory (os error 2); install the package iptables or nftables";
        assert_eq!(both.text, format!("{first}; {locked}"));
    }
}

//! Errors that occur when flanneld reads or writes traffic rules.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitStatus;
use types::{Coded, Detail, Errno, Problem};

/// Lock file of the iptables programs.
pub(crate) const XTABLES_LOCK: &str = "/run/xtables.lock";

/// The reason why a program failed. The error text changes only if the reason changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramError {
    /// Program that is not installed, or that the system refuses to run.
    Missing {
        /// The program that the daemon tried to run.
        program: String,
        /// The system's error. The field is `None` if no program ran, because none of several programs is installed.
        errno: Option<Errno>,
    },
    /// Program that the system could not start for lack of processes or memory.
    NoProcess {
        /// The program that the daemon tried to run.
        program: String,
    },
    /// Xtables lock that another program holds.
    Locked {
        /// The program that waited for the xtables lock.
        program: String,
        /// The process that holds the lock, with its program and user, if the kernel shows it, or how to find it.
        holder: String,
    },
    /// Program that did not finish in time.
    TimedOut {
        /// The command with its arguments.
        command: String,
        /// The time limit in seconds.
        seconds: u64,
    },
    /// Missing kernel object that the command names, or missing kernel feature that the command needs.
    NotFound {
        /// The command with its arguments.
        command: String,
        /// The exit status of the program.
        status: ExitStatus,
        /// The program's output on stderr.
        words: String,
    },
    /// Command that the program refused, or rules that the kernel refused.
    Refused {
        /// The command with its arguments.
        command: String,
        /// The exit status of the program.
        status: ExitStatus,
        /// The program's output on stderr.
        words: String,
    },
    /// Program whose exit status the daemon could not read.
    Lost {
        /// The command with its arguments.
        command: String,
        /// The errno of the failed system call.
        errno: Errno,
    },
    /// Program output that is no complete listing.
    Unusable {
        /// The command.
        command: String,
        /// What is wrong with the output, and the remedy if one is known.
        why: String,
    },
    /// Program that reported success, although the next listing lacks what it wrote.
    WithoutEffect {
        /// The program that wrote the rules.
        program: String,
    },
}

impl Coded for ProgramError {
    fn code(&self) -> &'static str {
        match self {
            ProgramError::Missing { .. } => "program-missing",
            ProgramError::NoProcess { .. } => "processes-exhausted",
            ProgramError::Locked { .. } => "rules-locked",
            ProgramError::TimedOut { .. } => "program-silent",
            ProgramError::NotFound { .. } => "rules-object-missing",
            ProgramError::Refused { .. } => "rules-refused",
            ProgramError::Lost { .. } => "program-lost",
            ProgramError::Unusable { .. } => "program-output-unusable",
            ProgramError::WithoutEffect { .. } => "rules-without-effect",
        }
    }

    fn detail(&self) -> Detail {
        match self {
            ProgramError::Missing { program, .. } => {
                Detail::ProgramMissing { program: program.clone() }
            }
            ProgramError::Locked { .. } => {
                Detail::RulesLocked { file: PathBuf::from(XTABLES_LOCK) }
            }
            _ => Detail::None,
        }
    }
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProgramError::Missing { program, errno: Some(errno) } => {
                write!(f, "cannot run {program}: {errno}")
            }
            ProgramError::Missing { program, errno: None } => {
                write!(f, "cannot run {program}: it is not installed")
            }
            ProgramError::NoProcess { program } => write!(
                f,
                "cannot start {program}: the system allows no more processes; raise the limit (TasksMax of the unit, pids of the container)"
            ),
            ProgramError::Locked { program, holder } => write!(
                f,
                "{program} timed out after 5 s waiting for {XTABLES_LOCK}, which {holder} holds"
            ),
            ProgramError::TimedOut { command, seconds } => {
                write!(f, "{command} did not finish within {seconds} s")
            }
            ProgramError::NotFound { command, status, words }
            | ProgramError::Refused { command, status, words } => {
                write!(f, "{command} failed with {status}: {words}")
            }
            ProgramError::Lost { command, errno } => write!(f, "{command}: {errno}"),
            ProgramError::Unusable { command, why } => {
                write!(f, "cannot use the output of {command}: {why}")
            }
            ProgramError::WithoutEffect { program } => write!(
                f,
                "{program} reported success, but the rules that it wrote are not in the next listing; check the program and whether another program removes the rules"
            ),
        }
    }
}

impl std::error::Error for ProgramError {}

/// The reason why the rules of a family are not in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RulesError {
    /// Failure of a program, after which rules may be missing.
    Program {
        /// The error of the program.
        error: ProgramError,
        /// Whether the daemon writes the rules with nftables instead of iptables.
        nftables: bool,
    },
    /// Failure to install the rules that guard the encapsulation port. All other rules are in place.
    Unguarded {
        /// The error of the program.
        error: ProgramError,
    },
}

impl RulesError {
    fn error(&self) -> &ProgramError {
        match self {
            RulesError::Program { error, .. } | RulesError::Unguarded { error } => error,
        }
    }
}

impl Coded for RulesError {
    fn code(&self) -> &'static str {
        match self {
            RulesError::Program { error, .. } => error.code(),
            RulesError::Unguarded { .. } => "tunnel-unguarded",
        }
    }

    fn detail(&self) -> Detail {
        self.error().detail()
    }

    fn parts(&self) -> Vec<Problem> {
        match self {
            RulesError::Program { .. } => Vec::new(),
            RulesError::Unguarded { error } => vec![Problem::of(error)],
        }
    }
}

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RulesError::Program { error: error @ ProgramError::Missing { .. }, nftables } => {
                let package = if *nftables { "nftables" } else { "iptables or nftables" };
                write!(f, "{error}; install the package {package}")
            }
            RulesError::Program { error, .. } => error.fmt(f),
            RulesError::Unguarded { error } => write!(
                f,
                "cannot install the rules that guard the encapsulation port; the other rules are in place: {error}"
            ),
        }
    }
}

impl std::error::Error for RulesError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.error())
    }
}

/// The reasons why the rules of several families are not in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesErrors(Vec<RulesError>);

impl RulesErrors {
    /// Returns the failures as one problem, or `None` without failures.
    pub fn problem(mut errors: Vec<RulesError>) -> Option<Problem> {
        errors.dedup();
        match errors.as_slice() {
            [] => None,
            [error] => Some(Problem::of(error)),
            _ => Some(Problem::from(RulesErrors(errors))),
        }
    }
}

impl Coded for RulesErrors {
    fn code(&self) -> &'static str {
        "rules-not-in-place"
    }

    fn parts(&self) -> Vec<Problem> {
        self.0.iter().map(Problem::of).collect()
    }
}

impl fmt::Display for RulesErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(program: &str, nftables: bool) -> RulesError {
        RulesError::Program {
            error: ProgramError::Missing {
                program: program.to_owned(),
                errno: Some(Errno(libc::ENOENT)),
            },
            nftables,
        }
    }

    #[test]
    fn failures_of_both_families_are_one_problem() {
        assert_eq!(RulesErrors::problem(Vec::new()), None);
        let one = RulesErrors::problem(vec![missing("nft", true), missing("nft", true)]).unwrap();
        assert_eq!(
            (one.code.as_ref(), one.detail.clone()),
            ("program-missing", Detail::ProgramMissing { program: "nft".to_owned() })
        );
        let locked = RulesError::Program {
            error: ProgramError::Locked {
                program: "iptables-legacy-restore".to_owned(),
                holder: "another program".to_owned(),
            },
            nftables: false,
        };
        let both =
            RulesErrors::problem(vec![missing("iptables-save", false), locked.clone()]).unwrap();
        let lock = Detail::RulesLocked { file: "/run/xtables.lock".into() };
        assert_eq!(
            both.details().cloned().collect::<Vec<_>>(),
            [Detail::ProgramMissing { program: "iptables-save".to_owned() }, lock]
        );
        let first = "cannot run iptables-save: No such file or directory (os error 2); install the package iptables or nftables";
        assert_eq!(both.text, format!("{first}; {locked}"));
    }
}

//! `flannelctl completion` and `flannelctl man`: shell completions and manual pages of flanneld and flannelctl.

mod manual;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::ValueEnum;
use clap_complete::Shell;

use terminal::out;

/// Options of `flannelctl completion`: the shell, and optionally one program.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell.
    shell: Shell,
    /// Prints only this program's completions, for a file in a completion directory.
    program: Option<Program>,
}

/// Options of `flannelctl man`: the directory for the manual pages.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The directory for the manual pages, such as /usr/local/share/man/man8.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Program {
    Flanneld,
    Flannelctl,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Program::Flanneld => "flanneld",
            Program::Flannelctl => "flannelctl",
        }
    }

    /// `own` is the definition of flannelctl's command line.
    fn script(self, shell: Shell, own: &clap::Command) -> Vec<u8> {
        let mut command = match self {
            Program::Flanneld => options::completion(),
            Program::Flannelctl => {
                own.clone().mut_subcommands(|command| command.mut_args(options::hinted))
            }
        };
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command, self.name(), &mut script);
        script
    }

    fn manual(self, own: &clap::Command) -> clap::Command {
        match self {
            Program::Flanneld => options::manual(),
            Program::Flannelctl => own.clone(),
        }
    }
}

pub(crate) fn run(args: &Args, own: &clap::Command) -> Result<()> {
    for program in Program::value_variants()
        .iter()
        .filter(|program| args.program.is_none_or(|only| only == **program))
    {
        out::generated(&program.script(args.shell, own));
    }
    Ok(())
}

/// One page for each program and for each subcommand.
pub(crate) fn manual(args: &ManArgs, own: &clap::Command) -> Result<()> {
    std::fs::create_dir_all(&args.dir)
        .with_context(|| format!("creating {}", args.dir.display()))?;
    for program in Program::value_variants() {
        let mut command = program.manual(own).disable_help_subcommand(true);
        command.build();
        pages(&command, &args.dir)
            .with_context(|| format!("cannot write manual pages to {}", args.dir.display()))?;
    }
    Ok(())
}

fn pages(command: &clap::Command, dir: &std::path::Path) -> std::io::Result<()> {
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        pages(subcommand, dir)?;
    }
    manual::write(command, dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::process::Command;

    /// The long flags of a program and its subcommands.
    fn flags(command: &clap::Command) -> BTreeSet<String> {
        let own = command
            .get_arguments()
            .filter(|arg| !arg.is_hide_set())
            .filter_map(|arg| arg.get_long().map(str::to_owned));
        let subcommands = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
        own.chain(subcommands.flat_map(flags)).collect()
    }

    fn all_flags(program: Program) -> BTreeSet<String> {
        let mut command = program.manual(&crate::command());
        command.build();
        flags(&command)
    }

    fn script(program: Program, shell: Shell) -> String {
        String::from_utf8(program.script(shell, &crate::command())).unwrap()
    }

    #[test]
    fn every_flag_is_completed() {
        for (program, at_least) in [(Program::Flanneld, 48), (Program::Flannelctl, 20)] {
            let flags = all_flags(program);
            assert!(flags.len() >= at_least, "{flags:?}");
            for shell in Shell::value_variants() {
                let script = script(program, *shell);
                for flag in &flags {
                    let written = if *shell == Shell::Fish {
                        format!("-l {flag} ")
                    } else {
                        format!("--{flag}")
                    };
                    assert!(
                        script.replace('\n', " ").contains(&written),
                        "{program:?} {shell}: {flag}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_flag_is_in_a_manual_page() {
        let dir = tempfile::tempdir().unwrap();
        let args = ManArgs { dir: dir.path().to_owned() };
        // Another user of the directory must not choose the file that root writes.
        let victim = tempfile::NamedTempFile::new().unwrap();
        for name in ["flanneld.8", "flannelctl-status.8"] {
            std::os::unix::fs::symlink(victim.path(), dir.path().join(name)).unwrap();
        }
        manual(&args, &crate::command()).unwrap();
        let mut names: Vec<String> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(victim.path().metadata().unwrap().len(), 0);
        assert!(dir.path().join("flanneld.8").symlink_metadata().unwrap().is_file());
        names.sort();
        let subcommands = [
            "cleanup",
            "completion",
            "dashboard",
            "doctor",
            "lab",
            "leases",
            "man",
            "peers",
            "probe",
            "release",
            "reserve",
            "routes",
            "status",
            "support-bundle",
        ]
        .map(|name| format!("flannelctl-{name}.8"));
        assert_eq!(
            names,
            [&subcommands[..], &["flannelctl.8".to_owned(), "flanneld.8".to_owned()]].concat()
        );
        for program in Program::value_variants() {
            let of_program = names.iter().filter(|name| name.starts_with(program.name()));
            let text: String = of_program
                .map(|name| std::fs::read_to_string(dir.path().join(name)).unwrap())
                .collect();
            for flag in all_flags(*program) {
                assert!(
                    text.contains(&format!("\\fB\\-\\-{}\\fR", flag.replace('-', "\\-"))),
                    "{program:?}: {flag}"
                );
            }
        }
    }

    /// The completions that bash offers for the last word in `words`.
    fn offered(words: &[&str]) -> Vec<String> {
        let (last, before) = (words.last().unwrap(), words.get(words.len() - 2).unwrap());
        let scripts =
            script(Program::Flanneld, Shell::Bash) + &script(Program::Flannelctl, Shell::Bash);
        let (program, all, at) = (words[0], words.join(" "), words.len() - 1);
        let line = format!(
            "{scripts}\nCOMP_WORDS=({all})\nCOMP_CWORD={at}\n_{program} {program} '{last}' '{before}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let done = Command::new("bash").args(["-c", &line]).output().unwrap();
        assert!(
            done.status.success() && done.stderr.is_empty(),
            "{words:?}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8(done.stdout)
            .unwrap()
            .lines()
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn bash_completes() {
        for (words, want) in [
            (&["flanneld", "--etcd-p"][..], &["--etcd-prefix", "--etcd-password"][..]),
            (
                &["flanneld", "-iface", "eth0", "-public-ip=10.0.0.1", "--encap-pe"],
                &["--encap-peers"],
            ),
            (&["flanneld", "--encap-peers", "d"], &["drop"]),
            (
                &["flanneld", "--ip-masq", "--datapath-"],
                &["--datapath-queues", "--datapath-real-time"],
            ),
            (&["flannelctl", "leases", "--etcd-ce"], &["--etcd-certfile"]),
            (&["flannelctl", "comp"], &["completion"]),
        ] {
            assert_eq!(offered(words), want, "{words:?}");
        }
        // flanneld stops parsing flags at a word after a switch, so none may be completed there.
        assert!(!offered(&["flanneld", "--ip-masq", "t"]).contains(&"true".to_owned()));
        assert!(offered(&["flanneld", "-ifa"]).is_empty());
    }
}

//! The commands that flannel's containers need, in one static program. Its name or its first argument selects
//! the command.
//!
//! Manifests call `cp` and `install-conf`, which replace files by a rename. The cleanup manifest calls `rm`
//! and `pause`.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use install_file::install;

const USAGE: &str = "\
usage: install-conf SOURCE DESTINATION    install a file
       cp [-fpv] SOURCE DESTINATION       install a file; keep the file's name if DESTINATION is a folder
       rm [-f] FILE...                    remove files; missing files are ignored
       pause                              wait until a signal ends the program
The program's name or its first argument selects the command.";

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let called = words.next().map(PathBuf::from).unwrap_or_default();
    let name = called.file_name().unwrap_or_default().to_owned();
    let (command, operands): (OsString, Vec<OsString>) = if name == "flannel-install" {
        (words.next().unwrap_or_default(), words.collect())
    } else {
        (name, words.collect())
    };
    match run(&command.to_string_lossy(), &operands) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

#[allow(clippy::print_stderr, reason = "the texts go to a container's log")]
fn complain(error: &io::Error) {
    eprintln!("{error}");
}

fn run(command: &str, operands: &[OsString]) -> io::Result<()> {
    let refuse = || Err(io::Error::other(USAGE));
    match (command, operands) {
        ("install-conf", [source, destination]) => place(source, destination),
        ("cp", _) => match operands_of(operands)? {
            [source, destination] => place(source, &into(source, destination)),
            _ => refuse(),
        },
        ("rm", _) => match operands_of(operands)? {
            [] => refuse(),
            files => files.iter().map(Path::new).try_for_each(remove),
        },
        ("pause", []) => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        _ => refuse(),
    }
}

/// The operands after `-f`, `-p` and `-v`, which have no effect: a rename always replaces the destination,
/// and the copy has the mode of its source. Other options are refused.
fn operands_of(words: &[OsString]) -> io::Result<&[OsString]> {
    let Some((option, rest)) = words.split_first() else {
        return Ok(words);
    };
    match option.to_string_lossy().strip_prefix('-') {
        None | Some("") => Ok(words),
        Some("-") => Ok(rest),
        Some("-force") => operands_of(rest),
        Some(letters) if letters.chars().all(|letter| "fpv".contains(letter)) => operands_of(rest),
        Some(_) => Err(io::Error::other(format!("unknown option {option:?}\n{USAGE}"))),
    }
}

/// Where `cp` installs the file: the destination, or a path inside it if it is a folder.
fn into(source: &OsString, destination: &OsString) -> OsString {
    match Path::new(source).file_name() {
        Some(name) if Path::new(destination).is_dir() => Path::new(destination).join(name).into(),
        _ => destination.clone(),
    }
}

fn place(source: &OsString, destination: &OsString) -> io::Result<()> {
    install(Path::new(source), Path::new(destination)).map_err(io::Error::other)
}

fn remove(file: &Path) -> io::Result<()> {
    match std::fs::remove_file(file) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
            Err(io::Error::other(format!("cannot remove {}: {cause}", file.display())))
        }
        _ => Ok(()),
    }
}

//! The few commands that flannel's containers need, in one static program: it acts by the name it is called by.
//!
//! Manifests call `cp` and `install-conf`; both replace files by a rename. The cleanup manifest calls `rm` and `pause`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use install_file::install;

/// What is said of a wrong call.
const USAGE: &str = "\
usage: install-conf SOURCE DESTINATION    install a file
       cp [-f] SOURCE DESTINATION         the same; a folder as the destination keeps the file's name
       rm [-f] FILE...                    remove files; one that is not there is no mistake
       pause                              wait to be stopped
The first word is the name the program is called by, or its first argument.";

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let called = words.next().map(PathBuf::from).unwrap_or_default();
    let name = called.file_name().unwrap_or_default().to_owned();
    let (command, operands): (OsString, Vec<OsString>) =
        if name == "flannel-install" { (words.next().unwrap_or_default(), words.collect()) } else { (name, words.collect()) };
    match run(&command.to_string_lossy(), &operands) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            complain(&text);
            ExitCode::FAILURE
        }
    }
}

#[allow(clippy::print_stderr, reason = "the texts go to a container's log")]
fn complain(text: &str) {
    eprintln!("{text}");
}

/// Carries out one command.
fn run(command: &str, operands: &[OsString]) -> Result<(), String> {
    match (command, operands) {
        ("install-conf", [source, destination]) => place(source, destination),
        ("cp", _) => match without_force(operands)? {
            [source, destination] => place(source, &into(source, destination)),
            _ => Err(USAGE.to_owned()),
        },
        ("rm", _) => match without_force(operands)? {
            [] => Err(USAGE.to_owned()),
            files => files.iter().map(Path::new).try_for_each(remove),
        },
        ("pause", []) => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        _ => Err(USAGE.to_owned()),
    }
}

/// The operands after `-f`, the one option: a rename needs no force.
fn without_force(operands: &[OsString]) -> Result<&[OsString], String> {
    match operands {
        [option, rest @ ..] if option == "-f" || option == "--force" || option == "--" => Ok(rest),
        [option, ..] if option.to_string_lossy().starts_with('-') => Err(format!("unknown option {option:?}\n{USAGE}")),
        _ => Ok(operands),
    }
}

/// Where `cp` puts the file: inside the destination if that is a folder.
fn into(source: &OsString, destination: &OsString) -> OsString {
    match Path::new(source).file_name() {
        Some(name) if Path::new(destination).is_dir() => Path::new(destination).join(name).into(),
        _ => destination.clone(),
    }
}

fn place(source: &OsString, destination: &OsString) -> Result<(), String> {
    install(Path::new(source), Path::new(destination)).map_err(|error| error.to_string())
}

fn remove(file: &Path) -> Result<(), String> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(format!("cannot remove {}: {error}", file.display())),
        _ => Ok(()),
    }
}

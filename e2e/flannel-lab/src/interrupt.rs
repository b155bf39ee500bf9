//! Removes the labs when a signal such as Ctrl-C ends the program.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Error, Result};
use tokio::signal::unix::{SignalKind, signal};

use crate::key;
use terminal::out;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// On SIGINT, SIGTERM and SIGHUP, removes the labs of this process and ends it.
pub(crate) fn remove_labs_on_signals() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Catch signals from here on, not only once the thread runs.
    let entered = runtime.enter();
    let (mut int, mut term, mut hup) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
        signal(SignalKind::hangup())?,
    );
    drop(entered);
    let wait = move || {
        let code = runtime.block_on(async {
            tokio::select! {
                _ = int.recv() => 130,
                _ = term.recv() => 143,
                _ = hup.recv() => 129,
            }
        });
        INTERRUPTED.store(true, Ordering::SeqCst);
        key::restore_terminal_settings();
        out::note("\nremoving the lab");
        if let Err(error) = lab::remove_own_unkept_labs() {
            out::complain(format!("{error:#}"));
        }
        std::process::exit(code);
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(wait)
        .map(drop)
        .context("starting the thread that waits for signals")
}

/// If a signal has interrupted the program, blocks until the signal thread ends the process; otherwise, the error stays as it is.
pub(crate) fn wait_for_exit_if_interrupted(error: Error) -> Error {
    while INTERRUPTED.load(Ordering::SeqCst) {
        std::thread::park();
    }
    error
}

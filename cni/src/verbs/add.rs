//! ADD: the configuration is saved before the delegate runs, so that DEL finds it whatever happens in between.

use super::shared::{Means, Netconf, failed, never_started, reading, undo};
use crate::call::{Call, Verb};
use crate::delegate::{Failure, Order};
use crate::error::{CniError, DECODING_FAILURE, INTERNAL};
use crate::gojson;
use crate::scratch::{self, Progress, Saved, Scratch};

pub(super) fn add(call: &Call, means: Means<'_>) -> Result<Vec<u8>, CniError> {
    let netconf = Netconf::build(&call.conf, means.patience)?;
    let text = gojson::encode(&netconf.object);
    let folder = &call.conf.data_dir;
    let scratch = Scratch::create(folder).map_err(|why| failed("opening", folder, &why))?;
    let name = scratch::name(&call.attachment);
    let writing = |why| failed("writing", &scratch.path(&name), &why);
    let earlier = scratch.read(&name).map_err(reading(&scratch, &name))?;
    let there = match &earlier {
        // The plugin was killed in the middle: the delegate would refuse what is half there.
        Some(saved) if saved.progress == Progress::Begun => {
            let old = Netconf::read(&saved.text);
            let (program, netconf) = old.as_ref().map_or((&netconf.program, text.as_bytes()), |old| (&old.program, saved.text.as_slice()));
            undo(means, program, netconf, &call.attachment, &call.netns).map_err(|error| error.during("cleaning up after an interrupted ADD"))?;
            false
        }
        // An attachment that is in use keeps its file, and its interface, if this ADD is refused.
        Some(saved) => {
            not_of_another_network(call, saved)?;
            true
        }
        None => false,
    };
    if !there {
        scratch.write(&name, &text, Progress::Begun).map_err(writing)?;
    }
    let order = Order { program: &netconf.program, verb: Verb::Add, attachment: &call.attachment, netns: &call.netns, netconf: text.as_bytes() };
    match means.delegate.call(&order).and_then(result) {
        Ok(printed) => {
            if there {
                scratch.write(&name, &text, Progress::Done).map_err(writing)?;
            } else {
                scratch.finish(&name).map_err(writing)?;
            }
            Ok(printed)
        }
        Err(failure) => {
            // What cannot be undone now is left to DEL, which needs the file.
            if !there && (never_started(&failure) || undo(means, &netconf.program, text.as_bytes(), &call.attachment, &call.netns).is_ok()) {
                let _ = scratch.remove(&name);
            }
            Err(failure.into_error().during("failed to delegate add"))
        }
    }
}

/// Fails if an interface belongs to another network: its file is the only way to undo that.
fn not_of_another_network(call: &Call, saved: &Saved) -> Result<(), CniError> {
    match Netconf::read(&saved.text) {
        Some(old) if old.network() != call.conf.name => {
            let why = format!("{} of container {} belongs to network {:?}", call.attachment.interface, call.attachment.container, old.network());
            Err(CniError::new(INTERNAL, why).details("it must be removed from that network first, by DEL with its configuration"))
        }
        _ => Ok(()),
    }
}

/// The delegate's result, if it is one.
fn result(printed: Vec<u8>) -> Result<Vec<u8>, Failure> {
    match serde_json::from_slice::<serde_json::Value>(&printed) {
        Ok(result) if result.is_object() => Ok(printed),
        _ => {
            let text: String = String::from_utf8_lossy(&printed).chars().take(500).collect();
            Err(Failure::Failed(CniError::new(DECODING_FAILURE, "the delegate succeeded without a result").details(format!("it printed {text:?}"))))
        }
    }
}

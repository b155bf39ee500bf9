//! Executes ADD. The delegate's configuration is saved before the delegate runs, so that DEL always finds it.

use super::shared::{
    Context, Netconf, failed, network_of, never_started, reading, undo, undo_saved,
};
use crate::attachment_store::{self, AttachmentStore, Progress, Saved};
use crate::call::{Call, Verb};
use crate::delegate::{DelegateError, Order};
use crate::error::{CniError, DECODING_FAILURE, INTERNAL};
use crate::netconf::encode;

pub(super) fn add(call: &Call, context: Context<'_>) -> Result<Vec<u8>, CniError> {
    let netconf = Netconf::build(&call.conf, context.patience)?;
    let text = encode(&netconf.object);
    let folder = &call.conf.data_dir;
    let attachment_store =
        AttachmentStore::create(folder).map_err(|why| failed("opening", folder, &why))?;
    let name = attachment_store::name(&call.attachment);
    let writing = |why| failed("writing", &attachment_store.path(&name), &why);
    let earlier = attachment_store.read(&name).map_err(reading(&attachment_store, &name))?;
    let there = match &earlier {
        // The plugin was killed during ADD. Undo that first, because the delegate would refuse an interface that it has already created.
        Some(saved) if saved.progress == Progress::Begun => {
            undo_saved(context, &call.conf, &saved.text, &call.attachment, &call.netns)
                .map_err(|error| error.during("cleaning up after an interrupted ADD"))?;
            false
        }
        // An attachment in use must keep its file and its interface if the delegate refuses this ADD.
        Some(saved) => {
            not_of_another_network(call, saved)?;
            true
        }
        None => false,
    };
    if !there {
        attachment_store.write(&name, &text, Progress::Begun).map_err(writing)?;
    }
    let order = Order {
        program: &netconf.program,
        verb: Verb::Add,
        attachment: &call.attachment,
        netns: &call.netns,
        netconf: text.as_bytes(),
    };
    match context.delegate.call(&order).and_then(result) {
        Ok(printed) => {
            if there {
                attachment_store.write(&name, &text, Progress::Done).map_err(writing)?;
            } else {
                attachment_store.finish(&name).map_err(writing)?;
            }
            Ok(printed)
        }
        Err(error) => {
            // If the undo fails, the file stays for DEL.
            if !there
                && (never_started(&error)
                    || undo(
                        context,
                        &netconf.program,
                        text.as_bytes(),
                        &call.attachment,
                        &call.netns,
                    )
                    .is_ok())
            {
                let _ = attachment_store.remove(&name);
            }
            Err(error.into_error().during("failed to delegate add"))
        }
    }
}

/// ADD would overwrite the other network's saved configuration, which DEL needs to remove the interface.
fn not_of_another_network(call: &Call, saved: &Saved) -> Result<(), CniError> {
    match network_of(&saved.text) {
        Some(other) if other != call.conf.name => {
            let why = format!(
                "{} of container {} belongs to network {other:?}",
                call.attachment.interface, call.attachment.container
            );
            Err(CniError::new(INTERNAL, why).details(
                "remove the interface from that network first: run DEL with the other network's configuration",
            ))
        }
        _ => Ok(()),
    }
}

/// Checks that the delegate printed a JSON object.
fn result(printed: Vec<u8>) -> Result<Vec<u8>, DelegateError> {
    match serde_json::from_slice::<serde_json::Value>(&printed) {
        Ok(result) if result.is_object() => Ok(printed),
        _ => {
            let text: String = String::from_utf8_lossy(&printed).chars().take(500).collect();
            Err(DelegateError::Failed(
                CniError::new(DECODING_FAILURE, "the delegate succeeded without a result")
                    .details(format!("it printed {text:?}")),
            ))
        }
    }
}

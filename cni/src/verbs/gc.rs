//! Executes GC: removes the attachments of this network that are no longer valid, as DEL does, and then calls
//! the delegate with GC.

use super::shared::{Context, Netconf, failed, network_of, reading, undo_saved};
use crate::attachment::Attachment;
use crate::attachment_store::{AttachmentStore, Entry, FIRST};
use crate::call::{Call, Verb};
use crate::delegate::{DelegateError, Order};
use crate::error::{CniError, INCOMPATIBLE_VERSION, INTERNAL, INVALID_ENVIRONMENT};
use crate::netconf::encode;
use serde_json::{Value, json};

pub(super) fn gc(call: &Call, context: Context<'_>) -> Result<(), CniError> {
    // Without a list, nothing is known to be invalid: `cnitool gc` calls so. A delegate might take it for an empty list.
    let Some(valid) = call.conf.valid_attachments()? else {
        return Ok(());
    };
    let folder = &call.conf.data_dir;
    let mut errors = Vec::new();
    if let Some(attachment_store) =
        AttachmentStore::open(folder).map_err(|why| failed("opening", folder, &why))?
    {
        for entry in attachment_store.entries().map_err(|why| failed("listing", folder, &why))? {
            if !is_valid(&entry, &valid)
                && let Err(error) = collect(call, context, &attachment_store, &entry)
            {
                errors.push(error);
            }
        }
    }
    if let Err(error) = delegated(call, context, &valid) {
        errors.push(error);
    }
    let count = errors.len();
    match errors.into_iter().next() {
        None => Ok(()),
        Some(first) if count == 1 => Err(first),
        Some(first) => {
            Err(CniError { msg: format!("{} (the first of {count} errors)", first.msg), ..first })
        }
    }
}

/// A file without an interface in its name may belong to any interface of the container.
fn is_valid(entry: &Entry, valid: &[Attachment]) -> bool {
    let fits = |attachment: &Attachment| {
        entry.interface.as_ref().is_none_or(|interface| *interface == attachment.interface)
    };
    valid.iter().any(|attachment| attachment.container == entry.container && fits(attachment))
}

/// Calls the delegate with DEL for an attachment and removes its file. Skips attachments of other networks.
fn collect(
    call: &Call,
    context: Context<'_>,
    attachment_store: &AttachmentStore,
    entry: &Entry,
) -> Result<(), CniError> {
    let forget = || {
        attachment_store
            .remove(&entry.name)
            .map_err(|why| failed("removing", &attachment_store.path(&entry.name), &why))
    };
    let read =
        attachment_store.read(&entry.name).map_err(reading(attachment_store, &entry.name))?;
    let Some(saved) = read else {
        // A plugin that was killed before it wrote the file left this entry. The delegate had not been called.
        return forget();
    };
    let attachment = Attachment {
        container: entry.container.clone(),
        interface: entry.interface.clone().unwrap_or_else(|| FIRST.to_owned()),
    };
    let network = network_of(&saved.text);
    if network.as_ref().is_some_and(|name| *name != call.conf.name) {
        return Ok(());
    }
    undo_saved(context, &call.conf, &saved.text, &attachment, "")?;
    // A power failure leaves an empty file. Other text without a name may be of another network or not of the plugin, so it stays.
    if network.is_none() && !saved.text.is_empty() {
        return Ok(());
    }
    forget()
}

/// The delegate then removes what it holds for attachments that are no longer valid.
fn delegated(call: &Call, context: Context<'_>, valid: &[Attachment]) -> Result<(), CniError> {
    let mut netconf = Netconf::build_to_undo(&call.conf)?;
    let list: Value = valid
        .iter()
        .map(|one| json!({ "containerID": one.container, "ifname": one.interface }))
        .collect();
    netconf.object.insert("cni.dev/valid-attachments".to_owned(), list);
    let text = encode(&netconf.object);
    let nobody = Attachment { container: String::new(), interface: String::new() };
    let order = Order {
        program: &netconf.program,
        verb: Verb::Gc,
        attachment: &nobody,
        netns: "",
        netconf: text.as_bytes(),
    };
    match context.delegate.call(&order).map_err(DelegateError::into_error) {
        Err(error) if is_too_old(&error) => Ok(()),
        outcome => outcome.map(drop).map_err(|error| error.during("failed to delegate gc")),
    }
}

/// Whether the delegate does not support GC.
fn is_too_old(error: &CniError) -> bool {
    error.code == INCOMPATIBLE_VERSION
        || (matches!(error.code, INVALID_ENVIRONMENT | INTERNAL)
            && error.msg.contains("unknown CNI_COMMAND"))
}

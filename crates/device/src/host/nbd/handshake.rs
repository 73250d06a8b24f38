//! From a fresh connection to an export: fixed newstyle negotiation, with TLS when it is asked for.
//!
//! TLS comes first, so that nothing else travels in the clear; a server that cannot is refused. Structured replies, and the metadata context that
//! says where an export reads as zeroes, are requested but not required.
//!
//! `GO` names the export and asks for its block sizes. Servers that do not know it (before 2017) get
//! `EXPORT_NAME`, to which they answer an unknown name by closing the connection.
//!
//! Everything a server sends is bounded: one deadline for the whole, a limit for every message.

use super::super::nbd_address::NbdAddress;
use super::stream::Stream;
use super::tls::Tls;
use super::transport::Wire;
use super::wire::{self, Handshake, Transmission, answer, info, lost, option, refused, take};
use crate::DeviceErrorKind;
use std::io::{self, IoSlice, Read};
use std::time::{Duration, Instant};

/// More than any reply to our options has.
const REPLY_BYTES_MAX: u32 = 64 << 10;
/// How many replies to one option are read.
const REPLIES_MAX: usize = 64;
/// The largest smallest request that the protocol allows a server.
const BLOCK_BYTES_MAX: u32 = 64 << 10;
/// What a request may carry when the server names no limit.
const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// What is known of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Export {
    pub(super) bytes: u64,
    pub(super) flags: Transmission,
    /// Smallest request, a power of two; 1 when the server names none.
    pub(super) block_min: u32,
    /// The size that the server likes.
    pub(super) block_preferred: u32,
    /// Most bytes that a request may carry.
    pub(super) payload_max: u32,
    /// Replies come in chunks.
    pub(super) structured: bool,
    /// The number of the context that says which ranges read as zeroes.
    pub(super) allocation: Option<u32>,
}

impl Export {
    /// The reason why a device that was opened on `self` cannot use the export as the server offers
    /// it now.
    pub(super) fn differs(&self, now: &Export) -> Option<String> {
        let lost = self.flags.difference(now.flags);
        if now.bytes < self.bytes {
            return Some(format!(
                "it has {} bytes, and had {}",
                now.bytes, self.bytes
            ));
        }
        if !lost.is_empty() {
            return Some(format!("it cannot do what it could ({lost:?})"));
        }
        if now.flags.contains(Transmission::READ_ONLY)
            && !self.flags.contains(Transmission::READ_ONLY)
        {
            return Some("it is read-only now".into());
        }
        if (now.structured, now.allocation) != (self.structured, self.allocation) {
            return Some("it speaks the protocol otherwise".into());
        }
        if now.block_min > self.block_min.max(512) || now.payload_max < self.payload_max {
            return Some("it wants other request sizes".into());
        }
        None
    }
}

type Result<T> = std::result::Result<T, DeviceErrorKind>;

/// A connection during the handshake.
struct Talk {
    wire: Wire,
    deadline: Instant,
}

impl Talk {
    fn left(&self) -> Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(DeviceErrorKind::Os(libc::ETIMEDOUT));
        }
        Ok(left)
    }

    fn read(&self, buf: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let left = self.left()?;
            self.wire
                .stream()
                .set_read_limit(Some(left))
                .map_err(|e| lost(&e))?;
            match (&mut &self.wire).read(&mut buf[done..]) {
                Ok(0) => return Err(DeviceErrorKind::Gone),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(lost(&e)),
            }
        }
        Ok(())
    }

    fn number<const N: usize>(&self) -> Result<u64> {
        let mut bytes = [0; N];
        self.read(&mut bytes)?;
        Ok(take::<N>(&mut &bytes[..]))
    }

    fn write(&self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let left = self.left()?;
            self.wire
                .stream()
                .set_write_limit(Some(left))
                .map_err(|e| lost(&e))?;
            match self.wire.send(&[IoSlice::new(bytes)]) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(lost(&e)),
            }
        }
        self.wire.push().map_err(|e| lost(&e))
    }

    fn option(&self, option: u32, data: &[u8]) -> Result<()> {
        let mut message = Vec::with_capacity(16 + data.len());
        message.extend_from_slice(&wire::OPTION.to_be_bytes());
        message.extend_from_slice(&option.to_be_bytes());
        message.extend_from_slice(&(data.len() as u32).to_be_bytes());
        message.extend_from_slice(data);
        self.write(&message)
    }

    /// A reply to an option: its kind, and what it carries.
    fn reply(&self, option: u32) -> Result<(u32, Vec<u8>)> {
        let magic = self.number::<8>()?;
        let to = self.number::<4>()?;
        let kind = self.number::<4>()? as u32;
        let bytes = self.number::<4>()? as u32;
        if magic != wire::OPTION_REPLY || to != u64::from(option) {
            return Err(refused(
                "the server breaks the protocol: no reply to our option",
            ));
        }
        if bytes > REPLY_BYTES_MAX {
            return Err(refused(format!(
                "the server breaks the protocol: a reply of {bytes} bytes to an option"
            )));
        }
        let mut data = vec![0; bytes as usize];
        self.read(&mut data)?;
        Ok((kind, data))
    }

    fn abort(&self) {
        // Good manners only; the connection is closed anyway.
        let _unheard = self.option(option::ABORT, &[]);
    }
}

/// What an error reply says.
fn refusal(kind: u32, text: &[u8], export: &str) -> DeviceErrorKind {
    let what = match kind {
        answer::UNKNOWN => format!("the server has no export `{export}`"),
        answer::POLICY => format!("the server does not allow the export `{export}`"),
        answer::TLS_REQUIRED => "the server wants TLS (nbds://)".into(),
        answer::SHUTDOWN => "the server is shutting down".into(),
        answer::BLOCK_SIZE_REQUIRED => "the server wants other block sizes".into(),
        kind => format!("the server refuses the export `{export}` (reply {kind:#x})"),
    };
    let text: String = String::from_utf8_lossy(text)
        .chars()
        .filter(|c| !c.is_control())
        .take(200)
        .collect();
    refused(match text.trim() {
        "" => what,
        text => format!("{what}: {text}"),
    })
}

/// Negotiates. The connection has no time limits afterwards.
pub(super) fn negotiate(
    stream: Stream,
    address: &NbdAddress,
    tls: Option<&Tls>,
    deadline: Instant,
) -> Result<(Export, Wire)> {
    let mut talk = Talk {
        wire: Wire::plain(stream),
        deadline,
    };
    if talk.number::<8>()? != wire::GREETING {
        return Err(refused("no NBD server answers there"));
    }
    match talk.number::<8>()? {
        wire::OPTION => {}
        wire::OLDSTYLE => return Err(refused("an oldstyle NBD server is not supported")),
        _ => return Err(refused("no NBD server answers there")),
    }
    let offered = Handshake::from_bits_truncate(talk.number::<2>()? as u16);
    if !offered.contains(Handshake::FIXED_NEWSTYLE) {
        return Err(refused(
            "the NBD server does not negotiate (fixed newstyle)",
        ));
    }
    talk.write(&u32::from(offered.bits()).to_be_bytes())?;
    if let Some(tls) = tls {
        talk = secure(talk, tls)?;
    }
    let structured = ask(&talk, option::STRUCTURED_REPLY, &[])?;
    let allocation = match structured {
        true => allocation(&talk, &address.export)?,
        false => None,
    };
    let gone = |kind| match kind {
        // nbdkit does so when its plugin names a size that the protocol does not have.
        DeviceErrorKind::Gone => refused(
            "the server closed the connection when it was asked for the export; its log may say why. One reason is a minimum block size of more than 65536 bytes, which NBD does not have",
        ),
        kind => kind,
    };
    let mut export = match go(&talk, &address.export).map_err(gone)? {
        Some(export) => export,
        None => by_name(&talk, &address.export, offered)?,
    };
    (export.structured, export.allocation) = (structured, allocation);
    let sane = |block: u32| block.is_power_of_two() && block <= BLOCK_BYTES_MAX;
    if !sane(export.block_min) || export.payload_max < export.block_min {
        return Err(refused(format!(
            "the server wants requests of {} to {} bytes; the smallest one must be a power of two, and at most {BLOCK_BYTES_MAX} bytes",
            export.block_min, export.payload_max
        )));
    }
    let stream = talk.wire.stream();
    stream
        .set_read_limit(None)
        .and_then(|()| stream.set_write_limit(None))
        .map_err(|e| lost(&e))?;
    Ok((export, talk.wire))
}

/// `STARTTLS`, and the agreement on keys.
fn secure(talk: Talk, tls: &Tls) -> Result<Talk> {
    talk.option(option::STARTTLS, &[])?;
    match talk.reply(option::STARTTLS)? {
        (answer::ACK, _) => {}
        (kind, _) if kind & answer::ERROR != 0 => {
            talk.abort();
            return Err(refused("the server does not do TLS"));
        }
        _ => {
            return Err(refused(
                "the server breaks the protocol: no answer about TLS",
            ));
        }
    }
    let session = tls.begin(talk.wire.stream(), talk.deadline)?;
    Ok(Talk {
        wire: talk.wire.secured(session),
        deadline: talk.deadline,
    })
}

/// An option that a server may refuse. Whether it agreed.
fn ask(talk: &Talk, option: u32, data: &[u8]) -> Result<bool> {
    talk.option(option, data)?;
    match talk.reply(option)? {
        (answer::ACK, _) => Ok(true),
        (answer::TLS_REQUIRED, text) => {
            talk.abort();
            Err(refusal(answer::TLS_REQUIRED, &text, ""))
        }
        (kind, _) if kind & answer::ERROR != 0 => Ok(false),
        _ => Err(refused(
            "the server breaks the protocol: no answer to an option",
        )),
    }
}

/// Requests the context that says where an export reads as zeroes. Returns its number, when the
/// server knows it.
fn allocation(talk: &Talk, name: &str) -> Result<Option<u32>> {
    let mut data = Vec::new();
    data.extend_from_slice(&(name.len() as u32).to_be_bytes());
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&1u32.to_be_bytes());
    data.extend_from_slice(&(wire::ALLOCATION.len() as u32).to_be_bytes());
    data.extend_from_slice(wire::ALLOCATION.as_bytes());
    talk.option(option::SET_META_CONTEXT, &data)?;
    let mut found = None;
    for _ in 0..REPLIES_MAX {
        let (kind, data) = talk.reply(option::SET_META_CONTEXT)?;
        let mut rest = &data[..];
        match kind {
            answer::ACK => return Ok(found),
            answer::META_CONTEXT if data.len() >= 4 => {
                let number = take::<4>(&mut rest) as u32;
                if rest == wire::ALLOCATION.as_bytes() {
                    found = Some(number);
                }
            }
            kind if kind & answer::ERROR != 0 => return Ok(None),
            _ => break,
        }
    }
    Err(refused(
        "the server breaks the protocol: no answer about contexts",
    ))
}

/// `GO`; `None` when the server does not know it.
fn go(talk: &Talk, name: &str) -> Result<Option<Export>> {
    let mut data = Vec::with_capacity(8 + name.len());
    data.extend_from_slice(&(name.len() as u32).to_be_bytes());
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&1u16.to_be_bytes());
    data.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
    talk.option(option::GO, &data)?;
    let mut found = None;
    let mut sizes = None;
    for _ in 0..REPLIES_MAX {
        let (kind, data) = talk.reply(option::GO)?;
        let mut rest = &data[..];
        match kind {
            answer::ACK => {
                let Some((bytes, flags)) = found else { break };
                let (block_min, block_preferred, payload_max) =
                    sizes.unwrap_or((1, 4096, PAYLOAD_BYTES_MAX));
                return Ok(Some(Export {
                    bytes,
                    flags,
                    block_min,
                    block_preferred,
                    payload_max,
                    structured: false,
                    allocation: None,
                }));
            }
            answer::INFO => match (take::<2>(&mut rest) as u16, rest.len()) {
                (info::EXPORT, 10) => {
                    let bytes = take::<8>(&mut rest);
                    let flags = Transmission::from_bits_truncate(take::<2>(&mut rest) as u16);
                    found = Some((bytes, flags));
                }
                (info::BLOCK_SIZE, 12) => {
                    let mut next = || take::<4>(&mut rest) as u32;
                    sizes = Some((next(), next(), next()));
                }
                (info::EXPORT | info::BLOCK_SIZE, _) => break,
                _ => {}
            },
            answer::UNSUPPORTED => return Ok(None),
            kind if kind & answer::ERROR != 0 => {
                talk.abort();
                return Err(refusal(kind, &data, name));
            }
            _ => {}
        }
    }
    Err(refused(
        "the server breaks the protocol: it does not describe the export",
    ))
}

fn by_name(talk: &Talk, name: &str, flags: Handshake) -> Result<Export> {
    talk.option(option::EXPORT_NAME, name.as_bytes())?;
    let bytes = talk.number::<8>().map_err(|kind| match kind {
        DeviceErrorKind::Gone => refused(format!("the server has no export `{name}`")),
        kind => kind,
    })?;
    let export_flags = Transmission::from_bits_truncate(talk.number::<2>()? as u16);
    if !flags.contains(Handshake::NO_ZEROES) {
        talk.read(&mut [0; 124])?;
    }
    Ok(Export {
        bytes,
        flags: export_flags,
        block_min: 1,
        block_preferred: 4096,
        payload_max: PAYLOAD_BYTES_MAX,
        structured: false,
        allocation: None,
    })
}

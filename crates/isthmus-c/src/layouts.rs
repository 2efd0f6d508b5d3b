//! Calls for layouts of files, and for schedules of their pieces.

use std::collections::HashMap;
use std::ffi::{c_char, c_int};
use std::sync::Arc;

use isthmus_layout::{Description, Layout, Piece, STRIPE_MAX, Schedule};
use parking_lot::Mutex;

use crate::door::{Refusal, enter, give, invalid, look, path};
use crate::table::next_name;
use crate::types::{ANY_WORKER, LayoutRecord, ScheduleName, Status, TARGETS_MAX};

type Shared = Arc<Mutex<Schedule>>;
static SCHEDULES: Mutex<Option<HashMap<u64, Shared>>> = Mutex::new(None);

fn find(name: ScheduleName) -> Result<Shared, Refusal> {
    let found = SCHEDULES.lock().as_ref().and_then(|all| all.get(&name.id).cloned());
    found.ok_or_else(|| Refusal(Status::Stale, "there is no such schedule".to_owned()))
}

fn record(layout: &Layout) -> Result<LayoutRecord, Refusal> {
    let given = layout.targets();
    let mut targets = [0; TARGETS_MAX];
    let room = targets
        .get_mut(..given.len())
        .ok_or_else(|| Refusal(Status::TooLong, format!("the file has {} targets", given.len())))?;
    room.copy_from_slice(given);
    Ok(LayoutRecord { stripe: layout.stripe(), count: given.len() as u32, targets })
}

/// `isthmus_layout_of`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_layout_of(
    file: *const c_char,
    description: *const c_char,
    layout: *mut LayoutRecord,
) -> c_int {
    let body = || {
        // SAFETY: C's promise.
        let (file, description) = unsafe { (path(file), path(description)) };
        let file = file.ok_or_else(|| invalid("a null pointer where a path is to be read"))?;
        let found = match description {
            None => Layout::at(file),
            Some(description) => {
                let read = Description::read(description).map_err(|fault| invalid(&fault.to_string()))?;
                read.layout(file).unwrap_or_default()
            }
        };
        // SAFETY: C's promise.
        unsafe { give(layout, record(&found)?) }
    };
    enter(body, || ())
}

/// `isthmus_schedule_create`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_schedule_create(
    layout: *const LayoutRecord,
    piece: u64,
    schedule: *mut ScheduleName,
) -> c_int {
    let body = || {
        // SAFETY: C's promise.
        let record = unsafe { look(layout) }?;
        let targets = record.targets.get(..record.count as usize);
        let targets = targets.filter(|targets| targets.len() > 1 && piece > 0);
        let targets = targets.filter(|_| (1..=STRIPE_MAX).contains(&record.stripe));
        let Some(targets) = targets else {
            return Err(invalid("a schedule needs a piece's length, a stripe's length, and several targets"));
        };
        let made = Schedule::new(Layout::striped(0, record.stripe, targets), piece);
        let name = ScheduleName { id: next_name() };
        // SAFETY: C's promise.
        unsafe { give(schedule, name) }?;
        SCHEDULES.lock().get_or_insert_default().insert(name.id, Arc::new(Mutex::new(made)));
        Ok(())
    };
    enter(body, || ())
}

/// `isthmus_schedule_add`.
#[unsafe(no_mangle)]
pub extern "C" fn isthmus_schedule_add(schedule: ScheduleName, worker: u32, offset: u64, len: u64) -> c_int {
    let body = || {
        let schedule = find(schedule)?;
        let end = offset.checked_add(len).filter(|end| *end > offset && *end <= i64::MAX as u64);
        let end = end.ok_or_else(|| invalid("no range of a file"))?;
        match worker {
            ANY_WORKER => schedule.lock().add(offset..end),
            worker => schedule.lock().add_own(worker, Piece { offset, len }),
        }
        Ok(())
    };
    enter(body, || ())
}

/// `isthmus_schedule_take`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_schedule_take(
    schedule: ScheduleName,
    worker: u32,
    offset: *mut u64,
    len: *mut u64,
) -> c_int {
    let body = || {
        let schedule = find(schedule)?;
        // SAFETY: C's promise. Both are checked before a piece is taken.
        unsafe { (give(offset, 0)?, give(len, 0)?) };
        let piece = schedule.lock().take(worker).ok_or(Status::Again)?;
        // SAFETY: C's promise.
        unsafe { (give(offset, piece.offset)?, give(len, piece.len)?) };
        Ok(())
    };
    enter(body, || ())
}

/// `isthmus_schedule_done`.
#[unsafe(no_mangle)]
pub extern "C" fn isthmus_schedule_done(schedule: ScheduleName, offset: u64) -> c_int {
    let body = || {
        find(schedule)?.lock().done(offset);
        Ok(())
    };
    enter(body, || ())
}

/// `isthmus_schedule_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn isthmus_schedule_destroy(schedule: ScheduleName) -> c_int {
    let body = || {
        find(schedule)?;
        SCHEDULES.lock().as_mut().map(|all| all.remove(&schedule.id));
        Ok(())
    };
    enter(body, || ())
}

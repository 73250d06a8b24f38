//! Damage to one structure at a time.

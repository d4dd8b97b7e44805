//! The ordered index: one program for all tests.

#![allow(non_snake_case, reason = "tests are named function__condition")]

mod churn;
mod model;
mod service;

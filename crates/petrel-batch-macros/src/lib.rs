#![doc = include_str!("../README.md")]

mod copies;
mod cut;
mod emit;
mod expand;
mod live;
mod machine;
mod marks;
mod names;
mod normal;
mod options;
mod refuse;
mod signature;
mod temporaries;
#[cfg(test)]
mod tests;
mod uses;

/// Makes a batch of a function with marks: see the crate `petrel-batch`.
#[proc_macro_attribute]
pub fn batched(
    options: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    expand::expand(options.into(), item.into())
        .unwrap_or_else(|error| error.into_compile_error())
        .into()
}

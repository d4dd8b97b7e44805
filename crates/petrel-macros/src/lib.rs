#![doc = include_str!("../README.md")]

mod definition;
mod expand;

use syn::parse_macro_input;

/// Makes a client, a server and a table of methods of a trait: see the module `petrel::service`.
#[proc_macro_attribute]
pub fn service(
    options: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    let options = parse_macro_input!(options as definition::Options);
    let item = parse_macro_input!(item as syn::ItemTrait);
    let definition = definition::Definition::of(options, item);
    let tokens = definition.map(|definition| expand::expand(&definition));
    tokens.unwrap_or_else(syn::Error::into_compile_error).into()
}

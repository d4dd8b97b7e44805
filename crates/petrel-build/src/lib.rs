#![doc = include_str!("../README.md")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use prost::Message;
use prost_build::{Comments, Config, Method, Service, ServiceGenerator};

/// Compiles `.proto` files, which may import others of the folders `includes`, into `OUT_DIR`: a file for each package, by its name.
///
/// # Errors
/// A file cannot be read, or is no valid definition; the text names the place.
pub fn compile(
    files: &[impl AsRef<Path>],
    includes: &[impl AsRef<Path>],
) -> Result<(), Box<dyn Error>> {
    Builder::default().compile(files, includes)
}

/// Settings of the compilation.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    /// Attributes of methods, by their full names.
    attributes: BTreeMap<String, Vec<String>>,
    out: Option<PathBuf>,
}

impl Builder {
    /// Lets the handler of a method, such as `greeter.Greeter/SayHello`, run in the event loop.
    #[must_use]
    pub fn dispatch(self, method: impl Into<String>) -> Self {
        self.attribute(method, "#[dispatch]".to_owned())
    }

    /// Lets the handler of a method run on workers.
    #[must_use]
    pub fn worker(self, method: impl Into<String>) -> Self {
        self.attribute(method, "#[worker]".to_owned())
    }

    /// Sets the number of a method.
    #[must_use]
    pub fn id(self, method: impl Into<String>, id: u16) -> Self {
        self.attribute(method, format!("#[id({id})]"))
    }

    fn attribute(mut self, method: impl Into<String>, attribute: String) -> Self {
        self.attributes.entry(method.into()).or_default().push(attribute);
        self
    }

    /// Sets the folder of the results; `OUT_DIR` by default.
    #[must_use]
    pub fn out_dir(self, folder: impl Into<PathBuf>) -> Self {
        Self { out: Some(folder.into()), ..self }
    }

    /// Compiles as [`compile`] does.
    ///
    /// # Errors
    /// As [`compile`]; and a setting names a method that no file has.
    pub fn compile(
        self,
        files: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<(), Box<dyn Error>> {
        for folder in includes {
            println!("cargo:rerun-if-changed={}", folder.as_ref().display());
        }
        let set = protox::compile(files, includes)?;
        let methods = set.file.iter().flat_map(|file| {
            file.service.iter().flat_map(move |service| {
                service.method.iter().map(move |method| (file, service, method))
            })
        });
        let mut names = Vec::new();
        for (file, service, method) in methods {
            let service = full_name(file.package(), service.name());
            let name = format!("{service}/{}", method.name());
            let is_stream = method.client_streaming() || method.server_streaming();
            let is_placed =
                |attribute: &String| attribute == "#[dispatch]" || attribute == "#[worker]";
            let attributes = self.attributes.get(&name);
            if is_stream && attributes.is_some_and(|all| all.iter().any(is_placed)) {
                return Err(format!("{name}: a method with streams is async").into());
            }
            names.push(name);
        }
        if let Some(unknown) = self.attributes.keys().find(|name| !names.contains(name)) {
            return Err(format!(
                "no file has the method {unknown}: there are {}",
                names.join(", ")
            )
            .into());
        }
        let out = match self.out.clone() {
            Some(out) => out,
            None => env::var_os("OUT_DIR").ok_or("OUT_DIR is set in build scripts")?.into(),
        };
        let first = files.first().and_then(|file| file.as_ref().file_stem()).ok_or("no file")?;
        let descriptors = Path::new(first).with_extension("descriptors").display().to_string();
        fs::write(out.join(&descriptors), set.encode_to_vec())?;
        let traits = Traits { attributes: self.attributes, descriptors };
        let mut config = Config::new();
        config.out_dir(out).service_generator(Box::new(traits));
        // A message with its name can be the detail of an error.
        config.enable_type_names();
        Ok(config.compile_fds(set)?)
    }
}

fn full_name(package: &str, name: &str) -> String {
    if package.is_empty() { name.to_owned() } else { format!("{package}.{name}") }
}

/// Writes a trait for each service.
struct Traits {
    attributes: BTreeMap<String, Vec<String>>,
    /// The file of the descriptors, beside the result.
    descriptors: String,
}

impl ServiceGenerator for Traits {
    fn generate(&mut self, service: Service, out: &mut String) {
        let name = full_name(&service.package, &service.proto_name);
        let methods: Vec<String> =
            service.methods.iter().map(|method| self.method(&name, method)).collect();
        let (comments, trait_name, methods) =
            (docs(&service.comments, 0), service.name, methods.concat());
        let descriptors = &self.descriptors;
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "{comments}#[::petrel::service(name = {name:?}, codec = ::petrel::service::Prost, \
             descriptors = include_bytes!({descriptors:?}))]\n\
             pub trait {trait_name} {{\n{methods}}}\n"
        );
    }
}

impl Traits {
    fn method(&self, service: &str, method: &Method) -> String {
        let mut attributes = self
            .attributes
            .get(&format!("{service}/{}", method.proto_name))
            .cloned()
            .unwrap_or_default();
        attributes.insert(0, format!("#[name = {:?}]", method.proto_name));
        let streams = (method.client_streaming, method.server_streaming);
        let is_idempotent = method.options.idempotency_level.is_some_and(|level| level != 0);
        if is_idempotent && streams == (false, false) {
            attributes.push("#[idempotent]".to_owned());
        }
        let has = |name: &str| attributes.iter().any(|attribute| attribute == name);
        let (keyword, cx) = match (has("#[dispatch]"), has("#[worker]")) {
            (true, _) => ("fn", "&mut ::petrel::Context<'_>"),
            (false, true) => ("fn", "&::petrel::workers::WorkerRequest"),
            (false, false) => ("async fn", "&::petrel::service::Ctx"),
        };
        let (input, output) = (&method.input_type, &method.output_type);
        // A client has functions of its own.
        let is_taken = TAKEN.contains(&&*method.name);
        let name = if is_taken { format!("{}_", method.name) } else { method.name.clone() };
        // Other handlers read the message in place, and keep its memory for the next.
        let input = if keyword == "fn" { format!("&{input}") } else { input.clone() };
        let receiver = || format!("input: ::petrel::stream::Receiver<{input}>");
        let sender = || format!("output: ::petrel::stream::Sender<{output}>");
        let (arguments, reply) = match streams {
            (false, false) => (format!("request: {input}"), &**output),
            (false, true) => (format!("request: {input}, {}", sender()), "()"),
            (true, false) => (receiver(), &**output),
            (true, true) => (format!("{}, {}", receiver(), sender()), "()"),
        };
        format!(
            "{}    {}\n    {keyword} {name}(&self, cx: {cx}, {arguments}) \
             -> ::core::result::Result<{reply}, ::petrel::Error>;\n",
            docs(&method.comments, 1),
            attributes.join(" "),
        )
    }
}

/// The names of functions that a client has already.
const TAKEN: [&str; 6] = ["new", "connect", "connect_wait", "client", "table", "with"];

/// Returns comments as documentation, without examples that would be compiled.
fn docs(comments: &Comments, indent: u8) -> String {
    let mut text = String::new();
    comments.append_with_indent(indent, &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compiles one file, and returns the result or the error.
    fn compiled(name: &str, text: &str, builder: Builder) -> Result<String, String> {
        let folder = env::temp_dir().join(format!("petrel-build-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("birds.proto");
        fs::write(&file, text).unwrap();
        let done = builder.out_dir(&folder).compile(&[&file], &[&folder]);
        let result = done.map_err(|error| error.to_string());
        let result = result.map(|()| fs::read_to_string(folder.join("birds.v1.rs")).unwrap());
        fs::remove_dir_all(&folder).unwrap();
        result
    }

    const BIRDS: &str = r#"
        syntax = "proto3";
        package birds.v1;
        message Bird { string name = 1; }
        // Sightings.
        service Birds {
            // Notes a bird.
            rpc NoteOne(Bird) returns (Bird) { option idempotency_level = IDEMPOTENT; }
            rpc Count(Bird) returns (Bird);
            rpc GetURL(Bird) returns (Bird);
            rpc New(Bird) returns (Bird);
        }
    "#;

    #[test]
    fn compile__makes_a_trait_with_its_names_and_attributes() {
        let builder =
            Builder::default().dispatch("birds.v1.Birds/Count").id("birds.v1.Birds/Count", 7);
        let result = compiled("trait", BIRDS, builder).unwrap();
        for part in [
            "impl ::prost::Name for Bird",
            "/// Sightings.\n#[::petrel::service(name = \"birds.v1.Birds\"",
            "descriptors = include_bytes!(\"birds.descriptors\")",
            "/// Notes a bird.\n    #[name = \"NoteOne\"] #[idempotent]\n    async fn note_one(&self, cx: &::petrel::service::Ctx, request: Bird)",
            "#[name = \"GetURL\"]\n    async fn get_url(",
            "#[name = \"New\"]\n    async fn new_(",
            "#[name = \"Count\"] #[dispatch] #[id(7)]\n    fn count(&self, cx: &mut ::petrel::Context<'_>, request: &Bird)",
        ] {
            assert!(result.contains(part), "{part} in\n{result}");
        }
    }

    #[test]
    fn compile__of_methods_with_streams() {
        let file = BIRDS.replace("Count(Bird)", "Count(stream Bird)");
        let file =
            file.replace("NoteOne(Bird) returns (Bird)", "NoteOne(Bird) returns (stream Bird)");
        let file =
            file.replace("New(Bird) returns (Bird)", "New(stream Bird) returns (stream Bird)");
        let result = compiled("streams", &file, Builder::default()).unwrap();
        for part in [
            "#[name = \"NoteOne\"]\n    async fn note_one(&self, cx: &::petrel::service::Ctx, request: Bird, output: ::petrel::stream::Sender<Bird>) -> ::core::result::Result<(), ::petrel::Error>;",
            "async fn count(&self, cx: &::petrel::service::Ctx, input: ::petrel::stream::Receiver<Bird>) -> ::core::result::Result<Bird, ::petrel::Error>;",
            "input: ::petrel::stream::Receiver<Bird>, output: ::petrel::stream::Sender<Bird>)",
        ] {
            assert!(result.contains(part), "{part} in\n{result}");
        }
    }

    #[test]
    fn compile__refuses_places_of_streams_unknown_methods_and_files_with_mistakes() {
        let stream = BIRDS.replace("Count(Bird)", "Count(stream Bird)");
        let builder = Builder::default().dispatch("birds.v1.Birds/Count");
        let error = compiled("stream", &stream, builder).unwrap_err();
        assert_eq!(error, "birds.v1.Birds/Count: a method with streams is async");
        let error = compiled("name", BIRDS, Builder::default().worker("birds.v1.Birds/Cuont"));
        let error = error.unwrap_err();
        assert!(error.starts_with("no file has the method birds.v1.Birds/Cuont"), "{error}");
        let error = compiled("type", &BIRDS.replace("string", "strng"), Builder::default());
        assert!(error.unwrap_err().contains("strng"));
    }
}

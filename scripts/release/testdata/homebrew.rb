# As much of Homebrew as the formula asks for: unpacks the archive of this machine, installs it into
# a folder, and runs the test of the formula.
#
#   ruby homebrew.rb lapse.rb FOLDER-OF-ARCHIVES PREFIX
require "digest"
require "fileutils"
require "pathname"
require "rbconfig"
require "socket"

FORMULA, DIST, PREFIX = ARGV
SYSTEM = RbConfig::CONFIG["host_os"].include?("darwin") ? "macos" : "linux"
ARCH = RbConfig::CONFIG["host_cpu"].match?(/arm|aarch64/) ? "arm" : "intel"

class Pathname
  def install(what)
    mkpath
    pairs = what.is_a?(Hash) ? what : { what => File.basename(what) }
    pairs.each { |from, to| FileUtils.cp_r(from, self/to) }
  end
end

# Records what the formula says of a service.
class Service
  def method_missing(name, *words) = (@said ||= {})[name] = words
  def respond_to_missing?(*) = true
  def var = Pathname.new(PREFIX)/"var"
  def opt_bin = Pathname.new(PREFIX)/"bin"
end

class Formula
  class << self
    attr_reader :made, :tests, :serves
    %i[desc homepage version license].each do |word|
      define_method(word) { |text = nil| text ? instance_variable_set("@#{word}", text) : instance_variable_get("@#{word}") }
    end
    { "macos" => SYSTEM, "linux" => SYSTEM, "intel" => ARCH, "arm" => ARCH }.each do |name, here|
      define_method("on_#{name}") { |&block| block.call if name == here }
    end
    def url(text) = (@made = { url: text })
    def sha256(text) = @made[:sum] = text
    def service(&block) = @serves = block
    def test(&block) = @tests = block
  end

  def prefix = Pathname.new(PREFIX)
  def bin = prefix/"bin"
  def var = prefix/"var"
  def man1 = prefix/"share/man/man1"
  def bash_completion = prefix/"etc/bash_completion.d"
  def zsh_completion = prefix/"share/zsh/site-functions"
  def fish_completion = prefix/"share/fish/vendor_completions.d"
  def pkgshare = prefix/"share/lapse"
  def version = self.class.version
  def free_port = TCPServer.open("127.0.0.1", 0) { |s| s.addr[1] }
  def quiet_system(*words) = system(*words.map(&:to_s), out: File::NULL, err: File::NULL)
  def spawn(*words) = Process.spawn(*words.map(&:to_s))
  def assert_match(want, text) = text.include?(want) || abort("want #{want} in #{text}")

  def shell_output(line)
    text = `#{line}`
    abort("#{line} ends with #{$?.exitstatus}: #{text}") unless $?.success?
    text
  end
end

load FORMULA
archive = File.join(DIST, File.basename(Lapse.made[:url]))
abort "the sum of #{archive} is another" if Digest::SHA256.file(archive).hexdigest != Lapse.made[:sum]
formula = Lapse.new
work = File.join(PREFIX, "work")
FileUtils.mkdir_p(work)
system("tar", "-xzf", archive, "-C", work, "--strip-components=1", exception: true)
Dir.chdir(work) { formula.install }
formula.post_install
Service.new.instance_eval(&Lapse.serves)
formula.instance_eval(&Lapse.tests)
puts "installed #{formula.version}"

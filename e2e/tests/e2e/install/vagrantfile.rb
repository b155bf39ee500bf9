# Evaluates a Vagrantfile without Vagrant: prints its machines with their networks and provisioning scripts as JSON.
require "json"

# Accepts every setting, and runs the blocks that providers and machines are given.
class Settings
  def initialize(calls)
    @calls = calls
  end

  def method_missing(name, *arguments, **options)
    @calls << [name, arguments, options]
    yield Settings.new(@calls) if block_given?
    self
  end

  def respond_to_missing?(*)
    true
  end
end

class Machines < Settings
  attr_reader :found

  def initialize
    super([])
    @found = []
  end

  def vm
    self
  end

  def define(name)
    calls = []
    yield Settings.new(calls)
    @found << {
      name: name,
      networks: calls.filter_map { |call, _, options| options[:ip] if call == :network },
      settings: calls.filter_map { |call, arguments, _| arguments.first if call == :customize },
      scripts: calls.filter_map { |call, _, options| { text: options[:inline], arguments: options[:args] || [] } if call == :provision },
    }
  end
end

module Vagrant
  def self.configure(_version)
    machines = Machines.new
    yield machines
    puts JSON.generate(machines.found)
  end
end

load ARGV.fetch(0)

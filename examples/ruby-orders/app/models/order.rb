# frozen_string_literal: true

# An order. In Rails it is an ApplicationRecord; here its table is a hash.
class Order
  @table = {}

  class << self
    def create!(id:) = @table[id] = new(id)

    def find_by(id:) = @table[id]
  end

  attr_reader :id, :state

  def initialize(id)
    @id = id
    @state = "unpaid"
  end

  def unpaid? = state == "unpaid"

  def pay! = @state = "paid"

  def cancel! = @state = "cancelled"
end
